"""python -m benchmarks [NAME] [flags]; see NAMES, and `python -m benchmarks NAME --help`."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.common import require
from command_line import UsageError, nearest, run
from data.vocabulary import DataError
from model.checkpoint import CheckpointError
from model.machine import MachineError

NAMES = {  # name: its module, what it measures, the packages beyond requirements.txt it needs
    "training": ("compare", "our training beside transformers' GPT-2", "transformers matplotlib"),
    "loss": ("loss", "the output layer's loss beside torch's", ""),
    "growth": ("growth", "speed against the sizes of the model", ""),
    "profile": ("profile", "where the time of a training step goes", ""),
    "memory": ("memory", "main memory over a long training", ""),
    "sampling": ("sampling", "writing poems beside transformers' GPT-2", "transformers"),
    "quality": ("quality", "what the poems are like", ""),
    "evidence": ("evidence", "five trainings: does one character attend to another?", ""),
    "faults": ("faults", "trainings that are killed and resumed", ""),
    "page": ("page", "the page of maps in a real browser", ""),
}


def main(argv: list[str]) -> int | None:
    """Run the benchmark that the first argument names; without a name, the training's."""
    if argv[:1] in (["-h"], ["--help"]):
        print("python -m benchmarks [NAME] [--quick] [other flags of NAME]\n")
        for name, (_, what, _) in NAMES.items():
            print(f"  {name:10} {what}{' (default)' if name == 'training' else ''}")
        return 0
    name = "training"
    if argv and not argv[0].startswith("-"):
        name, *argv = argv
    if name not in NAMES:
        raise UsageError(
            f"no benchmark {name}{nearest(name, list(NAMES))}; there are {', '.join(NAMES)}"
        )
    module, _, packages = NAMES[name]
    require(*packages.split())
    return import_module(f"benchmarks.{module}").main(argv)


if __name__ == "__main__":
    sys.argv[0] = "benchmarks"
    run(main, CheckpointError, DataError, MachineError)
