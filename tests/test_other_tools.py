"""Maps go into other viewers, and the teacher's notebook runs."""

import json
import os
from pathlib import Path

import pytest
import torch

from data.vocabulary import Vocabulary
from maps.capture import capture
from model.checkpoint import load_model

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def a_map(tiny_run):
    model, characters, _ = load_model(Path(tiny_run) / "ckpt.pt")
    vocabulary = Vocabulary(characters)
    return capture(model, vocabulary, "".join(vocabulary.characters[1:6]))


def test_bertviz_takes_a_map(a_map):
    from bertviz import head_view

    layers = [torch.from_numpy(layer)[None] for layer in a_map.weights]
    page = head_view(layers, a_map.tokens, html_action="return").data
    tokens, _ = json.JSONDecoder().raw_decode(page.split('"left_text": ')[1])
    weights, _ = json.JSONDecoder().raw_decode(page.split('"attn": ')[1])
    assert tokens == a_map.tokens
    torch.testing.assert_close(torch.tensor(weights), torch.from_numpy(a_map.weights))


def test_circuitsvis_takes_a_map(a_map):
    from circuitsvis.attention import attention_patterns

    page = str(attention_patterns(tokens=a_map.tokens, attention=a_map.weights[0]))
    tokens, _ = json.JSONDecoder().raw_decode(page.split('"tokens": ')[1])
    assert tokens == a_map.tokens


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    # The notebook trains by itself where its folder is empty.
    monkeypatch.setenv("OUT_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "notebooks" / "attention.ipynb", as_version=4)
    path = {"path": str(ROOT / "notebooks")}
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": path}
    ).execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert os.path.exists(tmp_path / "run" / "ckpt.pt")
