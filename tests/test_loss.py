"""linear_cross_entropy against torch's own cross_entropy on the full logits."""

import pytest
import torch
import torch.nn.functional as F

from model import loss as loss_module
from model.loss import CHUNK, GRAIN, linear_cross_entropy


def inputs(N: int = 700, C: int = 24, V: int = 90, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, C, generator=g).requires_grad_()
    weight = torch.randn(V, C, generator=g).requires_grad_()
    return x, weight, torch.randint(V, (N,), generator=g)


def both(x, weight, targets, dtype=torch.float32):
    """(loss, dx, dweight) of ours and of torch's, with products in `dtype`."""
    found = []
    for ours in (True, False):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            if ours:
                loss = linear_cross_entropy(x, weight, targets)
            else:
                logits = (x @ weight.T).float()
                loss = F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")
        # A factor behind the loss, as gradient accumulation has one.
        found.append((loss.detach(), *torch.autograd.grad(loss * 0.7, (x, weight))))
    return found


# Around the grain and the chunk, and over several chunks.
@pytest.mark.parametrize("N", [1, GRAIN - 1, GRAIN, GRAIN + 1, CHUNK - 1, CHUNK, CHUNK + 1, 1800])
def test_equal_in_float32(N):
    for a, b in zip(*both(*inputs(N)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [0, 1, GRAIN, 16 * CHUNK, 16 * CHUNK + 1, 32768, 10**6])
def test_chunks_of_a_gpu_are_equal_few_and_hardly_padded(rows):
    size = loss_module._chunk(rows, "cuda")
    parts = max(1, -(-rows // size))
    assert size % GRAIN == 0 and size <= 16 * CHUNK
    assert parts == max(1, -(-rows // (16 * CHUNK)))
    assert parts * size - rows <= parts * GRAIN


@pytest.mark.parametrize("N", [1, GRAIN, GRAIN + 1, 15 * GRAIN, 16 * GRAIN, 16 * GRAIN + 1, 4500])
def test_equal_in_the_chunks_of_a_gpu(N, monkeypatch):
    chunk = loss_module._chunk
    monkeypatch.setattr(loss_module, "CHUNK", GRAIN)
    monkeypatch.setattr(loss_module, "_chunk", lambda rows, device: chunk(rows, "cuda"))
    for a, b in zip(*both(*inputs(N)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-5)


def test_equal_in_bfloat16_to_its_rounding():
    x, weight, targets = inputs()
    ours, torchs = both(x, weight, targets, torch.bfloat16)
    torch.testing.assert_close(ours[0], torchs[0], rtol=1e-5, atol=0)  # of the same logits
    exact, _ = both(x, weight, targets)
    for a, b, true in zip(ours, torchs, exact, strict=True):
        assert a.dtype == b.dtype
        # As near to the exact value as torch's own path in bfloat16, within a factor.
        assert (a - true).norm() <= 2 * (b - true).norm() + 4e-3 * true.norm()


def test_ignored_targets_count_for_nothing():
    x, weight, targets = inputs()
    targets[::3] = -1
    ours, torchs = both(x, weight, targets)
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)
    assert (ours[1][::3] == 0).all()


@pytest.mark.parametrize("empty", ["no rows", "all ignored"])
def test_an_empty_part_has_loss_and_gradients_zero(empty):
    x, weight, targets = inputs(0 if empty == "no rows" else 5)
    loss = linear_cross_entropy(x, weight, targets.fill_(-1))
    dx, dweight = torch.autograd.grad(loss, (x, weight))
    assert loss == 0 and dx.shape == x.shape and not dx.any() and not dweight.any()


def test_an_impossible_target_costs_much_but_not_infinitely_much():
    x = torch.full((1, 4), 100.0, requires_grad=True)
    weight = torch.stack([torch.ones(4), -torch.ones(4)]).requires_grad_()
    loss = linear_cross_entropy(x, weight, torch.tensor([1]))
    assert 80 < loss.item() < 90
    dx, _ = torch.autograd.grad(loss, (x, weight))
    assert torch.isfinite(dx).all() and (dx > 0).all()  # downhill is still away from character 0


def test_chunks_change_nothing(monkeypatch):
    x, weight, targets = inputs()
    whole = both(x, weight, targets)[0]
    monkeypatch.setattr(loss_module, "CHUNK", 64)
    for a, b in zip(both(x, weight, targets)[0], whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_no_gradient_is_asked_for():
    x, weight, targets = inputs()
    with torch.no_grad():
        loss = linear_cross_entropy(x, weight, targets)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(
        F.cross_entropy(x @ weight.T, targets, reduction="sum").item(), rel=1e-5
    )
