"""Every setting of a training, where they come from, and what is refused before anything is lost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from command_line import Parser, UsageError, add_settings, read_settings, setting
from data.corpus import FOLDS
from model.gpt import GPT, GPTConfig
from model.machine import physical_memory
from model.optim import Optimizer, make_optimizers

DEFAULT = Path(__file__).parent / "configs" / "tang.toml"


@dataclass(frozen=True)
class TrainConfig:
    """Every setting of a training: defaults < TOML file < flags."""

    out_dir: str = setting("out/tang", "folder for the checkpoint, the log and the maps")
    data: str = setting("data/poems.txt", "UTF-8 text, one document a line")
    extra_data: str = setting(
        "",
        "a second text, read until the last epoch and never held out; documents with characters that "
        "data lacks, or with a line of a held-out one, are left out",
    )
    fold: int = setting(0, "which tenth of the documents is held out, 0 to 9")
    probes: tuple[str, ...] = setting(
        (), "texts whose attention maps are saved; none: the first document held out"
    )
    n_layer: int = setting(3, "blocks")
    n_head: int = setting(8, "attention heads in a block")
    n_embd: int = setting(128, "channels")
    block_size: int = setting(65, "longest text in characters, its start included")
    dropout: float = setting(0.0, "share of activations dropped in training")
    cutoff: int = setting(
        2048, "characters that count as common; for the others the output has a step more"
    )
    max_iters: int = setting(1800, "training steps")
    batch_size: int = setting(2304, "characters in a step, about")
    accumulation: int = setting(1, "parts that a batch is cut into to save memory")
    lr_decay_iters: int = setting(
        0, "steps of the learning rate's course and of extra_data's, 0: max_iters"
    )
    learning_rate: float = setting(1.4e-2, "peak for the output layer (AdamW)")
    embedding_learning_rate: float = setting(0.2, "peak for the embedding (AdamW)")
    muon_learning_rate: float = setting(2e-2, "peak for the blocks (Muon; distances AdamW)")
    muon_momentum: float = setting(0.9, "momentum of the blocks' gradients (Muon)")
    weight_decay: float = setting(
        0.1,
        "decay of the blocks' matrices and of the output layer; the embedding loses as much a step as "
        "that layer",
    )
    warmup_iters: int = setting(20, "steps in which the learning rate rises")
    cooldown: float = setting(1.0, "last share of the steps, in which it falls to zero")
    grad_clip: float = setting(1.0, "largest norm of the gradient, 0 for none")
    eval_interval: int = setting(180, "steps from one evaluation, map and checkpoint to the next")
    eval_batches: int = setting(20, "batches in an evaluation on the way; the last takes all")
    log_interval: int = setting(10, "steps from one line of metrics.jsonl to the next")
    seed: int = setting(1337, "seed of the weights, the order of batches and the dropout")
    device: str = setting("auto", "cpu, cuda, mps, or auto: cuda where there is one")
    dtype: str = setting("auto", "float32, bfloat16, or auto: the faster one here")
    compile: bool = setting(False, "compile the blocks first (up to a minute; for long runs)")

    def __post_init__(self) -> None:
        positive = (
            "max_iters batch_size accumulation eval_interval eval_batches log_interval "
            "learning_rate embedding_learning_rate muon_learning_rate"
        )
        for name in positive.split():
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be above zero, not {getattr(self, name)}")
        for name in ("warmup_iters", "lr_decay_iters", "grad_clip", "weight_decay", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)}")
        if 0 < self.lr_decay_iters < self.max_iters:
            raise UsageError(
                f"lr_decay_iters {self.lr_decay_iters} is less than max_iters {self.max_iters}: "
                "nothing would be learned after it; take 0, which is max_iters"
            )
        if not 0 <= self.cooldown <= 1:
            raise UsageError(f"cooldown is a share of the run, 0 to 1, not {self.cooldown}")
        if not 0 <= self.muon_momentum < 1:
            raise UsageError(f"muon_momentum is a share, 0 to below 1, not {self.muon_momentum}")
        if not 0 <= self.fold < FOLDS:
            raise UsageError(f"fold must be 0 to {FOLDS - 1}, not {self.fold}")
        for name, value in asdict(self).items():
            if isinstance(value, int) and value >= 1 << 63:
                raise UsageError(f"{name} is too large: take less than 2^63")
        for name, kind in (("out_dir", "folder"), ("data", "text file")):
            if not getattr(self, name):
                raise UsageError(f"{name} is empty: name a {kind}")
        self.model_config(vocab_size=1)

    def model_config(self, vocab_size: int) -> GPTConfig:
        """The sizes of the model. Raises UsageError where they contradict each other."""
        try:
            return GPTConfig(
                vocab_size,
                self.block_size,
                self.n_layer,
                self.n_head,
                self.n_embd,
                self.dropout,
                self.cutoff,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    def optimizers(self, model: GPT) -> list[Optimizer]:
        """The optimizers of a model, with these rates, momentum and decay."""
        return make_optimizers(
            model,
            self.embedding_learning_rate,
            self.learning_rate,
            self.muon_learning_rate,
            self.muon_momentum,
            self.weight_decay,
        )


def check_memory(config: TrainConfig, model_config: GPTConfig, device: str) -> None:
    """Refuse sizes that this machine cannot hold, before anything is allocated."""
    c = model_config
    tokens = max(config.batch_size / config.accumulation, c.block_size)
    # Weights, gradients and two moments in float32; about 30 numbers a channel, layer and token; the
    # attention weights, which cuda's kernels do not keep; the mask and the distances (of 8 bytes).
    attention = 0 if device.startswith("cuda") else c.n_head * c.block_size
    activations = tokens * c.n_layer * (30 * c.n_embd + attention)
    masks = (c.n_head + 2 * c.n_layer) * c.block_size**2
    needed, memory = 4 * (4 * c.parameters + activations + masks), physical_memory(device)
    if memory and needed > memory:
        raise UsageError(
            f"these sizes need about {needed / 1e9:,.1f} GB, {device} has {memory / 1e9:,.1f}: "
            "take a smaller n_embd, n_layer, block_size or batch_size, or a larger accumulation"
        )


def parse(argv: list[str], description: str = "") -> tuple[TrainConfig, bool, bool]:
    """The settings, and whether to resume or overwrite."""
    where = (
        "Defaults hold where neither a flag nor the TOML file says otherwise; configs/tang.toml also "
        "sets probes and extra_data."
    )
    parser = Parser(prog="train.py", description=description, epilog=where)
    parser.add_argument(
        "config", nargs="?", help="TOML file, configs/tang.toml where none is named"
    )
    parser.add_argument("--resume", action="store_true", help="go on from out_dir's checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in out_dir")
    add_settings(parser, TrainConfig)
    flags = vars(parser.parse_args(argv))
    path, resume, overwrite = (flags.pop(name) for name in ("config", "resume", "overwrite"))
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other: take one")
    settings = read_settings(DEFAULT if path is None else path, TrainConfig)
    if flags.get("data", settings.get("data")) != settings.get("data"):
        settings.pop("probes", None)  # they belong to the config's own text
        settings.pop("extra_data", None)
    settings |= flags
    former = Path(settings.get("out_dir", TrainConfig.out_dir)) / "config.toml"
    if resume and path is None and former.exists():  # go on with the settings of that run
        settings = read_settings(former, TrainConfig) | flags | {"out_dir": str(former.parent)}
    return TrainConfig(**settings), resume, overwrite


def check_same(config: TrainConfig, digest: str, state: dict) -> None:
    """Refuse to go on with another text or other sizes than those of the checkpoint, or to its
    past."""
    judged = state["val_step"] == state["step"]
    if state["step"] > config.max_iters or (state["step"] == config.max_iters and not judged):
        raise UsageError(
            f"the checkpoint is at step {state['step']}, max_iters is {config.max_iters}: take a "
            "larger --max_iters"
        )
    names = (
        "n_layer n_head n_embd block_size dropout cutoff fold probes batch_size accumulation seed "
        "grad_clip weight_decay learning_rate embedding_learning_rate muon_learning_rate "
        "muon_momentum"
    )
    pairs = {name: (state["config"].get(name), getattr(config, name)) for name in names.split()}
    pairs["probes"] = tuple(tuple(probes or ()) for probes in pairs["probes"])
    pairs["text in data or extra_data"] = (state.get("data_sha256"), digest)
    differing = [
        f"{name} (was {was}, is {now})" for name, (was, now) in pairs.items() if was != now
    ]
    if differing:
        raise UsageError(
            f"cannot resume, the checkpoint was trained with other settings: {', '.join(differing)}"
        )
