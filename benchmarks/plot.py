"""The picture of held-out loss against training time, ours and the reference's."""

from __future__ import annotations

from pathlib import Path

from benchmarks.runs import Log


def plot(path: Path, reference: list[Log], ours: list[Log]) -> None:
    """Write a PNG with one line a training; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for logs, color, label in (
        (reference, "0.55", "reference recipe, GPT-2 of transformers"),
        (ours, "#b03a2e", "python train.py"),
    ):
        for i, log in enumerate(logs):
            axes.plot(log.seconds, log.losses, ".-", color=color, label=None if i else label)
    # The first loss, of an untrained model, is left out to show what follows.
    last = [log.losses[-1] for log in reference + ours]
    axes.set_ylim(min(last) - 0.1, max(last) + 1.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training, evaluations excluded")
    axes.set_ylabel("held-out loss, nats a character")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
