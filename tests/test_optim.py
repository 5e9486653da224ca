"""Our Muon against torch.optim.Muon and against the singular values; the learning rate's course."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from model import optim
from model.gpt import GPT, GPTConfig
from model.optim import AdamW, Muon, make_optimizers, orthogonalize, schedule

SHAPES = [(24, 8), (24, 8), (8, 8), (8, 32), (32, 8), (8, 32)]
each_kind = pytest.mark.parametrize(
    ("kind", "settings"), [(AdamW, {"betas": (0.8, 0.9)}), (Muon, {"momentum": 0.9, "pieces": 1})]
)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_muon_takes_the_steps_of_torchs_muon(weight_decay, monkeypatch):
    monkeypatch.setattr(optim, "QUINTICS", 5 * [(3.4445, -4.7750, 2.0315)])  # torch's
    monkeypatch.setattr(optim, "MARGIN", 1)
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": weight_decay}
    optimizer = Muon([{"params": ours}], pieces=1, **settings)
    reference = torch.optim.Muon(theirs, **settings)
    start = [p.detach().clone() for p in ours]
    for _ in range(8):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizer.step()
        reference.step()
    for a, b, before in zip(ours, theirs, start, strict=True):
        moved = (b - before).norm()
        # Newton-Schulz runs in bfloat16 (8 bits of mantissa): equal to a hundredth of the way.
        assert (a - b).norm() <= 0.01 * moved and moved > 0.1


def test_stacked_matrices_move_as_if_each_were_alone():
    torch.manual_seed(0)
    start = torch.randn(24, 8)
    together = nn.Parameter(start.clone())
    alone = [nn.Parameter(part.clone()) for part in start.chunk(3)]
    groups = {"params": [together], "pieces": 3}, {"params": alone, "pieces": 1}
    optimizers = [Muon([group], lr=0.02, momentum=0.95, weight_decay=0.0) for group in groups]
    for _ in range(4):
        together.grad = torch.randn(24, 8)
        for p, part in zip(alone, together.grad.chunk(3), strict=True):
            p.grad = part.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-3)
    assert (together - start).norm() > 0.1


def test_adamw_takes_the_steps_of_torchs_adamw_and_goes_on_from_its_state():
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.ones(9, 4)), nn.Parameter(torch.ones(5))] for _ in "ab")
    decayed = {"lr": 0.1, "weight_decay": 0.2}
    groups = [[{"params": [a]} | decayed, {"params": [b]}] for a, b in (ours, theirs)]
    settings = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.0}
    optimizer = AdamW(groups[0], **settings)
    reference = torch.optim.AdamW(groups[1], **settings)
    for i in range(8):
        if i == 4:
            saved = optimizer.state_dict()
            optimizer = AdamW(groups[0], **settings)
            optimizer.load_state_dict(saved)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@each_kind
def test_a_state_of_other_parameters_is_refused(kind, settings):
    def stepped(*shapes):
        params = [nn.Parameter(torch.ones(shape)) for shape in shapes]
        optimizer = kind([{"params": params}], lr=0.1, weight_decay=0.0, **settings)
        for p in optimizer.state:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer

    optimizer = stepped((3, 4), (5, 4))
    optimizer.load_state_dict(stepped((3, 4), (5, 4)).state_dict())
    for shapes in [((3, 4),), ((3, 4), (5, 4), (5, 4)), ((3, 4), (2, 4)), ((5, 4), (3, 4))]:
        with pytest.raises(ValueError, match="of other parameters"):
            optimizer.load_state_dict(stepped(*shapes).state_dict())


def test_optimizers_do_not_load_torchs_compiler():
    code = (
        "import sys; from model.gpt import GPT, GPTConfig; from model.optim import make_optimizers;"
        "model = GPT(GPTConfig(20, n_layer=1, n_head=1, n_embd=8));"
        "optimizers = make_optimizers(model, 0.1, 0.1, 0.1, 0.9, 0.0);"
        "import torch; x = torch.ones(1, 3, dtype=torch.long); model.loss(x, x).backward();"
        "[optimizer.step() for optimizer in optimizers];"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.stdout.strip() == "False", done.stderr


def test_the_quintics_end_near_one():
    x = torch.linspace(0.01, 1, 100_000, dtype=torch.float64)
    for a, b, c in optim.QUINTICS:
        x = a * x + b * x**3 + c * x**5
    assert x.min() > 0.729 and x.max() < 1.271
    # Each is the best for its interval: the error touches its bound, up and down, four times.
    low, high = 0.01, 1.0
    for a, b, c in optim.QUINTICS:
        x = torch.linspace(low, high, 100_000, dtype=torch.float64)
        error = a * x + b * x**3 + c * x**5 - 1
        turns = (error.diff().sign().diff() != 0).nonzero().squeeze(1) + 1
        extremes = error[torch.cat([torch.tensor([0]), turns, torch.tensor([-1])])]
        assert len(extremes) == 4 and (extremes.sign().diff() != 0).all()
        torch.testing.assert_close(extremes.abs(), error.abs().max().expand(4), rtol=0, atol=2e-3)
        low, high = 1 + error.min().item(), 1 + error.max().item()


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 32), (2, 32, 8)])
def test_orthogonalize_keeps_singular_vectors_and_evens_their_values(shape):
    torch.manual_seed(0)
    g = torch.randn(shape)
    x = orthogonalize(g).float()
    values = torch.linalg.svdvals(x)
    share = torch.linalg.svdvals(g) / g.flatten(1).norm(dim=1, keepdim=True)
    near_one = (values > 0.7) & (values < 1.3)
    assert near_one[share > 0.0103].all() and near_one.float().mean() > 0.95
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    assert torch.linalg.svdvals(u.mT @ x @ vh.mT).allclose(values, atol=0.02)
    assert (torch.diagonal(u.mT @ x @ vh.mT, dim1=-2, dim2=-1) > 0.2).all()  # none turned over


def test_a_matrix_with_one_direction_is_not_blown_up():
    torch.manual_seed(0)
    g = torch.randn(500, 16, 1) @ torch.randn(500, 1, 16)
    largest = torch.linalg.svdvals(orthogonalize(g).float())[:, 0]
    assert largest.max() < 1.4 and largest.min() > 0.6


def test_every_parameter_has_one_optimizer_and_its_own_rate():
    model = GPT(GPTConfig(20, n_layer=2, n_head=1, n_embd=8))
    muon, adamw = make_optimizers(
        model,
        embedding_lr=0.1,
        output_lr=0.01,
        muon_lr=0.02,
        muon_momentum=0.9,
        weight_decay=0.1,
    )
    held = [p for o in (muon, adamw) for group in o.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))
    assert {p.shape for p in adamw.param_groups[0]["params"]} == {(20, 8)}
    groups = muon.param_groups + adamw.param_groups
    assert [group["lr"] for group in groups] == [0.02, 0.02, 0.1, 0.01, 0.02]
    assert [group["momentum"] for group in muon.param_groups] == [0.9, 0.9]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.01, 0.1, 0]
    # In a step the embedding loses as much of itself as the output layer.
    embedding, output = adamw.param_groups[:2]
    shrink = [group["lr"] * group["weight_decay"] for group in (embedding, output)]
    assert shrink[0] == pytest.approx(shrink[1])
    assert muon.param_groups[0]["pieces"] == 3
    assert {p.shape for p in muon.param_groups[0]["params"]} == {(24, 8)}


@each_kind
def test_a_share_of_the_rate_is_that_rate(kind, settings):
    ends = []
    for lr, share in ((0.1, 0.5), (0.05, 1.0)):
        p = nn.Parameter(torch.ones(4, 4))
        p.grad = torch.arange(16.0).view(4, 4)
        kind([{"params": [p]}], lr=lr, weight_decay=0.1, **settings).step(share)
        ends.append(p)
    assert torch.equal(*ends) and not torch.equal(ends[0], torch.ones(4, 4))


def test_schedule_rises_stays_and_falls_to_zero():
    shares = [schedule(step, 100, 9, 0.4) for step in range(100)]
    assert shares[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert shares[9:61] == [1.0] * 52
    assert shares[60:] == pytest.approx([(100 - i) / 40 for i in range(60, 100)])
    assert [schedule(step, 100, 9, 0.4) for step in (100, 101, 1000)] == [0] * 3
    assert schedule(0, 10, 0, 0.0) == 1.0  # no warm-up, no cool-down
