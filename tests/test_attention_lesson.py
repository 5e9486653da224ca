"""The lesson's printed numbers against numpy, its laws, and its command line."""

import ast
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attention

LESSON = Path(attention.__file__)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")
FAST = ["", "--exercise 1", "--exercise 2", "--self-check 1", "--self-check 3"]


@pytest.fixture
def said(capsys):
    """What the lesson prints for a command line, as text."""

    def run(asked: str) -> str:
        attention.main(asked)
        return capsys.readouterr().out

    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def section(said):
    """One section of the lesson, without its heading."""
    parts = re.split(r"^== (\d)\. .*$", said(""), flags=re.MULTILINE)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True)).__getitem__


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def matrix(text: str) -> np.ndarray:
    """The rows of a printed matrix: the lines with nothing but numbers."""
    return np.array(
        [numbers(line) for line in text.splitlines() if re.fullmatch(r"[-+ .\d]+", line)]
    )


def table(text: str) -> np.ndarray:
    """The rows of a printed table: the lines that begin with a number."""
    return np.array([numbers(line) for line in text.splitlines() if re.match(r" +\d", line)])


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def causal(scores: np.ndarray) -> np.ndarray:
    return np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)


def seeded_normals(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """What torch draws after manual_seed(0), for the references to compute with."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).double().numpy() for shape in shapes]


def section_5_vectors() -> list[np.ndarray]:
    x, *matrices = seeded_normals((5, 16), (16, 8), (16, 8), (16, 8))
    return [x @ W / 4 for W in matrices]


def test_the_five_sections_come_in_order_and_lead_on(said):
    text = said("")
    assert re.findall(r"^== (\d)\.", text, flags=re.MULTILINE) == list("12345")
    assert text.index("== 5.") < text.index("python train.py") < text.index("python view.py")


def test_section_1_averages(section):
    rows = np.tri(5) / np.arange(1, 6)[:, None]
    np.testing.assert_allclose(matrix(section(1)), rows, atol=0.005)
    assert "第三个位置等于前三个向量的平均：True" in section(1)


def test_section_2_scores(section):
    k = np.array([[0.1, 0.9], [0, 1], [0.9, 0.1], [1, 0], [0.8, 0.2]])
    scores = k @ [1, 0]
    printed = [numbers(line) for line in re.findall(r"\{.*\}", section(2))]
    for values, reference in zip(
        printed, [scores, softmax(scores), softmax(5 * scores)], strict=True
    ):
        np.testing.assert_allclose(values, reference, atol=0.005)
    assert "{床 0.1, 前 0.0, 明 0.9, 月 1.0, 光 0.8}" in section(2)
    assert "{床 0.12, 前 0.11, 明 0.26, 月 0.29, 光 0.23}" in section(2)
    assert "{床 0.01, 前 0.0, 明 0.3, 月 0.5, 光 0.18}" in section(2)


def test_section_3_mask(section):
    _, q, k = seeded_normals((5, 4), (5, 8), (5, 8))
    weights = matrix(section(3))
    np.testing.assert_allclose(weights, softmax(causal(q @ k.T / math.sqrt(8))), atol=0.005)
    golden = [
        [1.00, 0, 0, 0, 0],
        [0.96, 0.04, 0, 0, 0],
        [0.24, 0.26, 0.50, 0, 0],
        [0.09, 0.39, 0.43, 0.09, 0],
        [0.02, 0.14, 0.02, 0.09, 0.73],
    ]
    assert weights.tolist() == golden


def test_section_4_laws(section):
    d, spread, root, largest, gradient, largest_scaled, gradient_scaled = table(section(4)).T
    assert d.tolist() == [16, 64, 256, 1024]
    np.testing.assert_allclose(root, np.sqrt(d))
    np.testing.assert_allclose(spread, root, rtol=0.1)
    assert largest[0] > 0.75 and (np.diff(largest) > 0).all() and largest[-1] < 1
    assert ((largest_scaled > 0.4) & (largest_scaled < 0.55)).all()
    assert (np.diff(gradient) < 0).all()
    np.testing.assert_allclose(gradient_scaled, gradient_scaled.mean(), rtol=0.05)


def test_section_4_numbers(section):
    dimensions = (16, 64, 256, 1024)
    drawn = iter(seeded_normals(*((1000, n, d) for d in dimensions for n in (1, 5))))
    for d, row in zip(dimensions, table(section(4)), strict=True):
        scores = np.einsum("nqd,nkd->nk", next(drawn), next(drawn))
        reference = [d, scores.std(), math.sqrt(d)]
        for weights in (softmax(scores), softmax(scores / math.sqrt(d))):
            # |J|^2 for J_ij = w_i (1[i = j] - w_j), summed by hand
            squares = (weights**2).sum(-1)
            norm = np.sqrt(np.maximum(squares - 2 * (weights**3).sum(-1) + squares**2, 0))
            reference += [weights.max(-1).mean(), norm.mean()]
        np.testing.assert_allclose(row, reference, atol=0.0051)


def test_section_5_is_the_fused_head(section):
    assert "(5, 16) -> q, k, v (5, 8) -> (5, 8)" in section(5)
    assert numbers(section(5).splitlines()[2])[-1] <= 1e-6


@pytest.mark.parametrize("masked", [True, False])
def test_the_head_of_the_exercises_is_the_same(masked):
    q, k, v = torch.randn(3, 2, 7, 4, generator=torch.Generator().manual_seed(1))
    weights, out = attention.head(q, k, v, masked)
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=masked)
    torch.testing.assert_close(out, fused, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))


def test_exercise_1_asks_for_the_place(said):
    k = np.array([[0.1, 0.9], [0, 1], [0.9, 0.1], [1, 0], [0.8, 0.2]])
    old, new = softmax(k @ [1, 0]), softmax(k @ [0, 1])
    printed = [numbers(line) for line in re.findall(r"\{.*\}", said("--exercise 1"))]
    np.testing.assert_allclose(printed, [old, new, new - old], atol=0.0051)


def test_exercise_2_takes_the_mask_away(said):
    text = said("--exercise 2")
    q, k, v = section_5_vectors()
    scores = q @ k.T / math.sqrt(8)
    free, masked = softmax(scores) @ v, softmax(causal(scores)) @ v
    lengths = [np.linalg.norm(free - masked, axis=-1), np.linalg.norm(masked, axis=-1)]
    np.testing.assert_allclose(matrix(text), lengths, atol=0.0051)
    assert numbers(text.splitlines()[1])[-1] <= 1e-6


def test_measured_memory_is_that_of_the_tensors():
    x = torch.randn(300, 20)
    _, megabytes = attention.measure(lambda x: x @ x.T, x)
    assert megabytes * 1e6 == x.nbytes + 4 * 300 * 300


def test_exercise_3_fits_exponents_and_stops_where_memory_ends(said, monkeypatch):
    monkeypatch.setattr(attention, "measure", lambda run, q, *rest: (len(q) ** 1.5, 3 * len(q)))
    monkeypatch.setattr(attention, "free_bytes", lambda: 2 * 9 * 2000**2 + 1)
    text = said("--exercise 3")
    assert re.findall(r"^ +(\d+) ", text, flags=re.MULTILINE) == ["1000", "2000"] * 2
    assert text.count("时间 p = 1.50，内存 p = 1.00") == 2


def test_free_memory_is_less_than_the_machine_has():
    assert attention.free_bytes() > 0
    if hasattr(os, "sysconf"):
        built_in = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert attention.free_bytes() <= built_in


@pytest.mark.slow
def test_exercise_3_grows_with_the_square(said):
    found = re.findall(r"时间 p = (\S+)，内存 p = (\S+)", said("--exercise 3"))
    (time, memory), (fused_time, fused_memory) = np.array(found, dtype=float)
    assert 1.6 < time < 2.4
    assert 1.9 < memory < 2.05
    assert 1.4 < fused_time < 2.4
    assert fused_memory < 1.1


def test_self_check_1_one_key_moves_the_rows_that_see_it(said):
    text = said("--self-check 1")
    change = matrix(text)
    assert "weights 没变：True" in text
    assert (change[:2] == 0).all() and (np.triu(change, 1) == 0).all()
    assert (change[2:, 2] != 0).all()
    np.testing.assert_allclose(change.sum(-1), 0, atol=0.03)  # five roundings


def test_self_check_2_without_the_mask_it_copies(said):
    text = said("--self-check 2")
    line = re.search("「(.+?)」：", text)[1]
    (masked, masked_answer), (free, free_answer) = re.findall(r"损失 (\S+)，.*权重 (\S+)", text)
    masked_poem, free_poem = re.findall("写起：(.+)", text)
    assert float(masked) < 0.1 and float(free) < 0.1  # nats; guessing costs log 20 = 3.0
    assert float(masked_answer) == 0 and float(free_answer) > 0.9
    assert masked_poem == line
    right = sum(a == b for a, b in zip(free_poem, line, strict=True))
    assert right <= len(line) // 2


def test_self_check_3_gradients(said):
    rows = table(said("--self-check 3"))
    dimensions = (16, 64, 256, 1024)
    shapes = [(1000, n, size) for d in dimensions for n, size in [(1, d), (5, d), (1, 5), (1, 5)]]
    drawn = iter(seeded_normals(*shapes))
    for d, row in zip(dimensions, rows, strict=True):
        q, k = next(drawn), next(drawn)
        reference = [d]
        for scale in (1, 1 / math.sqrt(d)):
            weights = softmax(scale * np.einsum("nqd,nkd->nqk", q, k))
            g = next(drawn)
            to_scores = weights * (g - (weights * g).sum(-1, keepdims=True))
            size = np.linalg.norm(scale * to_scores @ k, axis=-1)
            reference += [size.mean(), np.median(size), size.max(), 100 * (size < 0.01).mean()]
        np.testing.assert_allclose(row, reference, atol=0.51, rtol=0.01)
    plain_median, scaled_median = rows[:, 2], rows[:, 6]
    assert (np.diff(plain_median) < 0).all() and plain_median[-1] < 0.001
    np.testing.assert_allclose(scaled_median, scaled_median.mean(), rtol=0.1)


@pytest.mark.parametrize(
    ("asked", "flag"),
    [
        ("--exercise 4", "--exercise"),
        ("--exercise=0", "--exercise"),
        ("--exercise", "--exercise"),
        ("--exercise two", "--exercise"),
        ("--exercize 2", "--exercise"),
        ("--self_check 1", "--self-check"),
        ("--selfcheck=1", "--self-check"),
        ("--self-check 1 2", "--self-check"),
        ("2", "--"),
    ],
)
def test_wrong_use_is_one_line(asked, flag, capsys):
    with pytest.raises(SystemExit) as stop:
        attention.main(asked)
    out, error = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert re.fullmatch(
        rf"attention\.py: error: no '.*': did you mean {flag}.* 1, 2 or 3\?\n", error
    )


def test_an_equals_sign_does_as_well(said):
    assert said("--exercise=1") == said("--exercise 1")
    assert "usage:" in said("--help")


@pytest.mark.parametrize("asked", FAST)
def test_a_chinese_code_page_takes_every_character(asked, said):
    said(asked).encode("gbk")


def lesson_process(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-u", LESSON, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_code_page_without_chinese_gets_utf8():
    out, error = lesson_process("--exercise", "1", PYTHONIOENCODING="cp1252").communicate()
    assert error == b""
    assert "月" in out.decode("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_is_one_line():
    process = lesson_process("--exercise", "3")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, b"attention.py: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGPIPE")
def test_a_reader_that_leaves_is_no_error():
    process = lesson_process("--exercise", "3")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.wait(timeout=60)


def test_the_lesson_needs_torch_alone_and_stays_short():
    source = LESSON.read_text(encoding="utf-8")
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.split(".")[0])
    assert imported <= sys.stdlib_module_names | {"torch"}
    assert len(source.splitlines()) < 300
