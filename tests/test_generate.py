"""The engine against the plain model: no cache, one text at a time, and softmax itself."""

import math

import numpy as np
import pytest
import torch

from model import choose
from model.choose import Choice, Sampling
from model.generate import Engine
from model.gpt import GPT, GPTConfig

BLOCK = 12


def random_model(vocab_size: int = 50, cutoff: int = 50) -> GPT:
    """A model whose every matrix is random, so that no two positions predict alike."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size, BLOCK, 2, n_head=2, n_embd=16, cutoff=cutoff)).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


@pytest.fixture(scope="module", params=[50, 20, 1])
def model(request) -> GPT:
    """Characters chosen in one step, and in two: some are common, and a single one is."""
    return random_model(cutoff=request.param)


@torch.no_grad()
def generate_without_cache(model: GPT, ids: list[int], max_new_tokens: int) -> list[int]:
    """The readable reference: the whole of what the block holds is read again for each character,
    and the likeliest one is taken."""
    ids = list(ids)
    for _ in range(max_new_tokens):
        logits, _ = model(torch.tensor([ids[-model.config.block_size :]]))
        ids.append(int(logits[0, -1].argmax()))
    return ids[-max_new_tokens:]


GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("copies", [1, 3])
def test_greedy_ids_equal_those_without_cache(model, length, copies):
    prompt = torch.randint(50, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    expected = generate_without_cache(model, prompt, 2 * BLOCK)
    assert Engine(model).generate([prompt] * copies, 2 * BLOCK, GREEDY) == [expected] * copies


@pytest.mark.parametrize("cutoff", [50, 25])
@pytest.mark.parametrize("copies", [1, 2, 17])
def test_where_rounding_could_choose_the_plain_model_does(copies, cutoff):
    model = random_model(cutoff=cutoff)
    for layer in filter(None, (model.lm_head.common, model.lm_head.rare)):
        odd = layer.weight.data[1::2]  # each is a double of the one before
        odd.copy_(layer.weight.data[::2][: len(odd)] + 1e-7 * torch.randn(len(odd), 16))
    expected = generate_without_cache(model, [1], 2 * BLOCK)
    assert Engine(model).generate([[1]] * copies, 2 * BLOCK, GREEDY) == [expected] * copies


@pytest.mark.parametrize("scale", [30, -30])
def test_scores_far_from_zero_neither_overflow_nor_vanish(monkeypatch, scale):
    model = random_model()
    with torch.no_grad():
        model.blocks[0].attn.distance_bias.fill_(4 * scale)
        for block in model.blocks:
            block.attn.c_attn.weight[:32] *= abs(scale) ** 0.5
    expected = generate_without_cache(model, [1], 2 * BLOCK)
    monkeypatch.setattr(Engine, "_plain", None)  # the engine itself must be right
    assert Engine(model).generate([[1]] * 2, 2 * BLOCK, GREEDY) == [expected] * 2


def test_prompts_of_different_length_in_one_batch(model):
    lengths = [5, 1, 30, BLOCK, 8]
    prompts = [torch.arange(n).mul(7).remainder(50).tolist() for n in lengths]
    expected = [generate_without_cache(model, prompt, 9) for prompt in prompts]
    assert Engine(model).generate(prompts, 9, GREEDY) == expected


@pytest.mark.parametrize("count", [1, 2])
def test_what_the_engine_reads_equals_the_forward_pass(model, count):
    idx = torch.randint(50, (count, BLOCK), generator=torch.Generator().manual_seed(5))
    seen = []

    class Dictation(Sampling):
        def weigh(self, logits):
            seen.append(torch.from_numpy(logits.copy()))
            logits[:] = torch.zeros(logits.shape).scatter(1, idx[:, len(seen), None], 1)

    whatever = np.ones(50, bool)  # a mask: all characters are looked at
    Engine(model).generate(
        idx[:, :1].tolist(), BLOCK - 1, Dictation(), allowed=lambda ids: whatever
    )
    with torch.no_grad():
        logits, _ = model(idx[:, :-1])
    torch.testing.assert_close(torch.stack(seen, 1), logits, atol=1e-4, rtol=1e-4)


def test_a_model_in_training_mode_is_read_without_dropout():
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, BLOCK, 2, 2, 16, dropout=0.5)).train()
    torch.nn.init.normal_(model.lm_head.common.weight)
    engine = Engine(model)
    assert model.training
    assert engine.generate([[1]], 20, GREEDY) == [generate_without_cache(model.eval(), [1], 20)]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.6), Sampling(1.3, top_k=40, top_p=0.95)]
)
def test_a_text_does_not_depend_on_its_company(model, sampling):
    engine = Engine(model)
    together = engine.generate([[1, 2]] * 40, 30, sampling, seed=3)
    for i in (0, 1, 17, 39):
        assert engine.generate([[1, 2]], 30, sampling, seed=3, numbers=[i]) == [together[i]]
    mixed = engine.generate([[4] * 9, [1, 2], [3]], 30, sampling, seed=3, numbers=[7, 17, 2])
    assert mixed[1] == together[17]
    assert engine.generate([[1, 2]] * 40, 10, sampling, seed=3) == [ids[:10] for ids in together]
    assert len(set(map(tuple, together))) == 40
    assert engine.generate([[1, 2]] * 40, 30, sampling, seed=4)[:3] != together[:3]


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> tuple[float, float]:
    """The statistic over characters expected at least 5 times, and a bound that chance passes once
    in some 100,000 times (Wilson and Hilferty's approximation)."""
    expected = p.double() * counts.sum()
    often = expected >= 5
    rest = (counts[~often].sum() - expected[~often].sum()) ** 2 / expected[~often].sum().clamp(1)
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum() + rest
    k = int(often.sum())
    return float(statistic), k * (1 - 2 / (9 * k) + 4.3 * math.sqrt(2 / (9 * k))) ** 3


@pytest.mark.parametrize("cutoff", [37, 10])
@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(0.5), Sampling(2), Sampling(1.5, top_k=20)],
)
def test_choices_are_distributed_as_the_softmax(sampling, count, cutoff):
    model = random_model(37, cutoff)  # no square: the last group is not full
    with torch.no_grad():
        logits = model(torch.tensor([[0, 5]]))[0][0, -1] / sampling.temperature
    if sampling.top_k:
        logits[logits < logits.sort(descending=True).values[sampling.top_k - 1]] = -math.inf
    engine, counts = Engine(model), torch.zeros(37)
    rounds = 500 if count == 1 else 20
    for start in range(0, rounds * count, count):
        numbers = range(start, start + count)
        ids = engine.generate([[0, 5]] * count, 1, sampling, seed=1, numbers=numbers)
        counts += torch.tensor(ids).flatten().bincount(minlength=37)
    statistic, bound = chi_square(counts, logits.softmax(-1))
    assert statistic < bound


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.6), Sampling(1.8)])
def test_where_nothing_is_clear_the_plain_model_chooses_the_same(monkeypatch, model, sampling):
    expected = Engine(model).generate([[1], [2, 3]] * 20, 20, sampling, seed=6)
    monkeypatch.setattr(choose, "LEAD", math.inf)
    assert Engine(model).generate([[1], [2, 3]] * 20, 20, sampling, seed=6) == expected


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.8)])
def test_rare_characters_are_looked_at_only_where_one_may_win(monkeypatch, sampling):
    rows = []
    look = choose.Choosing._which

    def counting(self, x, a_rare_one):
        rows.append(len(x))
        return look(self, x, a_rare_one)

    monkeypatch.setattr(choose.Choosing, "_which", counting)
    model = random_model(cutoff=25)
    model.lm_head.common.weight.data[-1] *= 0.5  # "a rare one" seldom wins
    Engine(model).generate([[i] for i in range(50)], 20, sampling)
    assert sum(rows) < 0.3 * 50 * 20
    assert sampling.greedy or rows


@pytest.mark.parametrize("cutoff", [37, 5])
def test_successive_draws_are_independent_of_each_other(cutoff):
    model = random_model(37, cutoff)
    for p in model.lm_head.parameters():
        torch.nn.init.zeros_(p)
    p = model(torch.tensor([[0]]))[0][0, 0].softmax(-1).detach()  # the same everywhere
    ids = torch.tensor(Engine(model).generate([[0]] * 400, 2 * BLOCK, Sampling(), seed=2))
    pairs = (ids[:, :-1] * 37 + ids[:, 1:]).flatten().bincount(minlength=37 * 37)
    statistic, bound = chi_square(pairs, torch.outer(p, p).flatten())
    assert statistic < bound


def test_weights_of_top_p_are_the_smallest_set_that_reaches_it():
    logits = torch.randn(20, 60, generator=torch.Generator().manual_seed(0)) * 2
    for top_p in (1e-46, 0.05, 0.5, 0.9, 1.0):  # the first is zero in float32
        weights = logits.clone()
        Sampling(top_p=top_p).weigh(weights.numpy())
        for row, p in zip(weights > 0, logits.softmax(-1), strict=True):
            chosen, total = set(), 0.0
            for i in p.argsort(descending=True).tolist():
                if total >= top_p:
                    break
                chosen.add(i)
                total += float(p[i])
            assert set(row.nonzero().flatten().tolist()) == chosen


def test_draw_never_takes_what_weighs_nothing():
    choice = Choice(Sampling(), 14, "", range(20_000))
    choice.logits[:] = -200
    choice.logits[:, 11] = 0
    chosen, clear = choice(1, np.arange(20_000))
    assert (chosen == 11).all() and clear.all()


def test_a_text_ends_at_stop_or_at_its_own_limit(model):
    engine = Engine(model)
    whole = engine.generate([[1], [2, 3, 4]], 20, GREEDY)
    stop = whole[0][6]
    first = whole[0].index(stop) + 1
    ended = engine.generate([[1], [2, 3, 4]], 20, GREEDY, stop=stop)
    assert ended[0] == whole[0][:first]
    second = whole[1].index(stop) + 1 if stop in whole[1] else 20
    assert ended[1] == whole[1][:second]


def test_streaming_yields_what_generate_returns(model):
    engine, prompts = Engine(model), [[1], [2, 3, 4]]
    streamed = list(engine.stream(prompts, 7, seed=5))
    assert streamed[0][1] is None and streamed[0][0] is not None  # the longer one is still read
    expected = engine.generate(prompts, 7, seed=5)
    assert [[new[i] for new in streamed if new[i] is not None] for i in (0, 1)] == expected


@pytest.mark.parametrize("count", [1, 3])
def test_only_allowed_characters_are_chosen(model, count):
    def even_after_odd(ids):
        return np.arange(50) % 2 != ids[:, -1:] % 2

    for sampling in (GREEDY, Sampling(2.0)):
        for ids in Engine(model).generate([[0]] * count, 40, sampling, allowed=even_after_odd):
            assert [i % 2 for i in ids] == [1, 0] * 20


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": math.nan}, {"temperature": math.inf}]
    + [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []], [[50]], [[-1]]])
def test_prompts_without_a_first_id_are_refused(model, prompts):
    with pytest.raises(ValueError, match="prompt"):
        Engine(model).generate(prompts, 3)


@pytest.mark.parametrize("temperature", [1e-30, 1e-5, 1e30])
def test_extreme_temperatures_stay_finite(model, temperature):
    [ids] = Engine(model).generate([[1]], 20, Sampling(temperature))
    if temperature < 1:
        assert ids == generate_without_cache(model, [1], 20)
