"""The model against laws that any causal transformer must keep."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from model import gpt
from model.gpt import GPT, IGNORE, GPTConfig, OutputLayer, norm

SIZES = GPTConfig(vocab_size=50, block_size=24, n_layer=3, n_head=2, n_embd=16)


def made_up_model(config: GPTConfig = SIZES, seed: int = 0) -> GPT:
    """A model whose every matrix is random: a new one has zeros that would hide faults."""
    torch.manual_seed(seed)
    model = GPT(config)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model


def texts(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(
        SIZES.vocab_size, (rows, columns), generator=torch.Generator().manual_seed(seed)
    )


def test_no_logit_depends_on_a_later_character():
    model, idx = made_up_model(), texts(1, SIZES.block_size)
    logits = model(idx)[0]
    for t in range(1, SIZES.block_size):
        changed = idx.clone()
        changed[0, t] = (idx[0, t] + 1) % SIZES.vocab_size
        other = model(changed)[0]
        assert torch.equal(other[0, :t], logits[0, :t])
        assert not torch.allclose(other[0, t], logits[0, t])


def test_a_logit_depends_on_every_earlier_character():
    model, idx = made_up_model(), texts(1, SIZES.block_size)
    embedded = model.wte(idx).detach().requires_grad_()
    model.wte.forward = lambda _: embedded
    model(idx)[0][0, -1].sum().backward()
    assert (embedded.grad[0].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("vocab_size", [2, 50, 6301])
def test_a_new_model_finds_every_common_character_equally_likely_and_every_rare_one(vocab_size):
    model = GPT(GPTConfig(vocab_size, n_layer=1, n_head=1, n_embd=8, cutoff=50))
    idx = torch.randint(vocab_size, (4, 30))
    p = model(idx)[0].softmax(-1)
    choices = vocab_size if vocab_size <= 50 else 51  # in the first step
    torch.testing.assert_close(p[..., :50], torch.full_like(p[..., :50], 1 / choices))
    expected = 1 / choices / max(1, vocab_size - 50)
    torch.testing.assert_close(p[..., 50:], torch.full_like(p[..., 50:], expected))
    loss = model.loss(idx, idx) / idx.numel()
    torch.testing.assert_close(loss, model(idx, idx)[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("cutoff", [50, 49, 20, 1])
def test_loss_and_gradients_are_cross_entropys_in_one_step_and_in_two(cutoff):
    torch.manual_seed(0)
    layer = OutputLayer(GPTConfig(50, n_head=1, n_embd=16, cutoff=cutoff))
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    x, targets = torch.randn(300, 16, requires_grad=True), torch.randint(50, (300,))
    targets[::7] = IGNORE
    expected = F.cross_entropy(layer(x), targets, ignore_index=IGNORE, reduction="sum")
    loss = layer.loss(x, targets)
    torch.testing.assert_close(loss, expected)
    inputs = [x, *layer.parameters()]
    for a, b in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_part_without_texts_or_rare_characters_has_gradients_of_zero(rows):
    """As a process may get one, and the others wait for its gradients."""
    model = GPT(replace(SIZES, cutoff=20))
    model.loss(torch.full((rows, 7), 3), torch.full((rows, 7), 3)).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not model.lm_head.rare.weight.grad.any()
    if rows == 0:
        assert not any(p.grad.any() for p in model.parameters())


def test_two_steps_are_adaptive_softmax():
    """torch's own, whose tail projects; here that projection is the identity."""
    layer = OutputLayer(GPTConfig(50, n_head=1, n_embd=16, cutoff=30))
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    torchs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 50, [30], div_value=1)
    torchs.head.weight.data.copy_(layer.common.weight)
    torchs.tail[0][0].weight.data.copy_(torch.eye(16))
    torchs.tail[0][1].weight.data.copy_(layer.rare.weight)
    x = torch.randn(40, 16)
    torch.testing.assert_close(layer(x).log_softmax(-1), torchs.log_prob(x))


def test_one_batch_can_be_overfitted():
    torch.manual_seed(0)
    model = GPT(SIZES)
    idx, targets = texts(4, 20, seed=2), texts(4, 20, seed=3)
    idx[:, 0] = torch.arange(4)  # no two texts begin alike: every target can be known
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(250):
        optimizer.zero_grad()
        loss = model.loss(idx, targets) / targets.numel()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1  # random targets: learnt by heart, from ln 50 = 3.9
    logits, _ = model(idx)
    assert torch.equal(logits.argmax(-1), targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_weights_sum_to_one_and_the_future_is_exactly_zero(dtype):
    attention = made_up_model().blocks[1].attn
    q, k = torch.randn(2, 3, 2, 20, 8, dtype=dtype)
    attention.to(dtype)
    weights = attention.weights(q, k)
    assert weights.shape == (3, 2, 20, 20)
    assert (weights.triu(1) == 0).all() and (weights.tril() > 0)[..., 0].all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 20, dtype=dtype))
    # Written out for one cell: exp(q·k / sqrt D + what the head likes at that distance) over its sum.
    liking = attention.distance_bias[1].tolist()
    products = (q[1, 1, 7] @ k[1, 1, :8].T / math.sqrt(8)).tolist()
    scores = [math.exp(products[j] + liking[7 - j]) for j in range(8)]
    assert weights[1, 1, 7, 3].item() == pytest.approx(scores[3] / sum(scores), rel=1e-5)


@pytest.mark.parametrize("short", [0, 128])
def test_explicit_path_equals_the_training_path_in_values_and_gradients(monkeypatch, short):
    monkeypatch.setattr(gpt, "SHORT", short)
    attention = made_up_model().blocks[0].attn
    x = torch.randn(3, 24, 16, requires_grad=True)
    grad = torch.randn(3, 24, 16)
    parameters = [x, *attention.parameters()]
    explicit, weights = attention.explicit(x)
    fused = attention(x)
    torch.testing.assert_close(explicit, fused, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(explicit, parameters, grad),
        torch.autograd.grad(fused, parameters, grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_whole_model_on_the_explicit_path_gives_the_same_logits(monkeypatch):
    monkeypatch.setattr(gpt, "SHORT", 0)
    model, idx = made_up_model(), texts(2, 24)
    fused = model(idx)[0]
    for block in model.blocks:
        block.attn.forward = lambda x, attn=block.attn: attn.explicit(x)[0]
    torch.testing.assert_close(model(idx)[0], fused, rtol=1e-4, atol=1e-4)


def test_among_equal_characters_weights_depend_on_the_distance_alone():
    attention = made_up_model().blocks[0].attn
    with torch.no_grad():
        weights = attention.explicit(torch.ones(1, 24, 16))[1][0]
    # Two distances in one row: the ratio of their weights is the same in every row.
    for near, far in ((0, 1), (1, 7), (3, 20)):
        ratio = weights.diagonal(-near, -2, -1)[:, far - near :] / weights.diagonal(-far, -2, -1)
        liking = attention.distance_bias[:, near] - attention.distance_bias[:, far]
        torch.testing.assert_close(ratio, liking.exp()[:, None].expand_as(ratio))


def test_a_new_model_looks_at_all_characters_alike():
    model, idx = GPT(SIZES), texts(1, 24)
    for block in model.blocks:
        weights = block.attn.explicit(norm(model.wte(idx)))[1]
        uniform = torch.ones(24, 24).tril() / torch.arange(1, 25)[:, None]
        torch.testing.assert_close(weights[0], uniform.expand(2, 24, 24))


def test_parameters_are_counted():
    for config in (SIZES, replace(SIZES, cutoff=20), replace(SIZES, cutoff=SIZES.vocab_size)):
        assert config.parameters == sum(p.numel() for p in GPT(config).parameters())


def test_norm_is_rms_norm():
    x = torch.randn(5, 16)
    torch.testing.assert_close(norm(x), x / x.square().mean(-1, keepdim=True).sqrt())


def test_forward_gives_every_logit_and_the_mean_over_counted_targets():
    model, idx = made_up_model(), texts(3, 10)
    targets = texts(3, 10, seed=5)
    targets[0, 4:] = IGNORE
    logits, loss = model(idx, targets)
    alone, none = model(idx)
    assert logits.shape == (3, 10, 50) and none is None and torch.equal(logits, alone)
    losses = [
        -logits[b, t].log_softmax(-1)[targets[b, t]].item()
        for b in range(3)
        for t in range(10)
        if targets[b, t] != IGNORE
    ]
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_padding_behind_a_text_changes_nothing_before_it():
    model, idx = made_up_model(), texts(1, 24)
    short = model(idx[:, :15])[0]
    torch.testing.assert_close(model(idx)[0][:, :15], short, rtol=1e-5, atol=1e-5)


def test_dropout_acts_in_training_alone():
    model = made_up_model(GPTConfig(50, 24, 2, 2, 16, dropout=0.5))
    idx = texts(1, 24)
    assert not torch.equal(model(idx)[0], model(idx)[0])
    model.eval()
    assert torch.equal(model(idx)[0], model(idx)[0])


def test_longer_than_the_block_is_refused():
    with pytest.raises(ValueError, match="25 characters, block_size is 24"):
        made_up_model()(texts(1, 25))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_embd": 18, "n_head": 4}, "not divisible"),
        ({"n_layer": 0}, "n_layer must be at least 1"),
        ({"block_size": -3}, "block_size must be at least 1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"dropout": math.nan}, "dropout"),
    ],
)
def test_sizes_that_contradict_each_other(wrong, says):
    with pytest.raises(ValueError, match=says):
        GPTConfig(**({"vocab_size": 5} | wrong))
