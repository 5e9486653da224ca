"""The picture of held-out loss against training time, ours and the reference's."""

from __future__ import annotations

from pathlib import Path

from benchmarks.runs import Log


def plot(path: Path, reference: list[Log], ours: list[Log]) -> None:
    """Write a PNG; needs matplotlib. The first training of each kind is a line, of the others, which
    were judged at their end alone, that point is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for logs, color, label in (
        (reference, "0.55", "reference recipe, GPT-2 of transformers"),
        (ours, "#b03a2e", "python train.py"),
    ):
        axes.plot(logs[0].seconds, logs[0].losses, ".-", color=color, label=label)
        ends = [log.total_s for log in logs[1:]], [log.losses[-1] for log in logs[1:]]
        axes.plot(*ends, "x", color=color)
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
