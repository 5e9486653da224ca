"""Train a character GPT on poems, and save what its attention heads look at as they learn.

python train.py                                     the default: configs/tang.toml, to out/tang
python train.py configs/smoke.toml --max_iters 50   another config; any setting is a flag
python train.py --resume                            go on where a stopped training was saved
torchrun --nproc_per_node=2 train.py                the same training, shared by two processes
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while importing: stop, no traceback
    if sys.stderr and sys.stderr.isatty():
        print("loading torch ...", file=sys.stderr, flush=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from command_line import UsageError, run, say, to_toml
from data.baselines import unigram_and_bigram
from data.batches import IGNORE, Batches, TrainingBatches
from data.corpus import Corpus, read_texts
from data.vocabulary import BOUNDARY, DataError, UnknownCharacterError, Vocabulary
from maps.capture import MapError, capture, map_path, save_map
from maps.look import look_at
from maps.run_page import quoted, write_run_page
from model.checkpoint import (
    CheckpointError,
    fitting,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from model.choose import Sampling
from model.generate import Engine
from model.gpt import GPT
from model.machine import (
    MachineError,
    check_compiler,
    device_of_process,
    hand_back_memory,
    pick_device,
    pick_dtype,
    set_up_memory,
)
from model.optim import clip_gradients, schedule
from run_folder import RunFolder
from train_settings import TrainConfig, check_memory, check_same, parse

TERMINAL = bool(sys.stderr) and sys.stderr.isatty()


class Stopping:
    """Remembers a first Ctrl-C or SIGTERM, so that the step under way can end and be saved; a second
    Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._remember)

    def _remember(self, number: int, frame) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number


class TrainingLoss(nn.Module):
    """The model's loss as a module's forward, which DistributedDataParallel needs. Compiled are the
    blocks, for any length of text; the loss, written by hand, and evaluation are not."""

    def __init__(self, model: GPT, compiled: bool) -> None:
        super().__init__()
        self.model, self.hidden = model, model.hidden
        if compiled:
            torch._dynamo.config.optimize_ddp = False  # it cuts the graph to send gradients early
            self.hidden = torch.compile(model.hidden, dynamic=True)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Sum of the losses of a part of a batch, in nats."""
        return self.model.lm_head.loss(self.hidden(idx), targets)


@torch.no_grad()
def evaluate(model: GPT, batches: Batches, count: int, device: str, dtype: torch.dtype) -> float:
    """Mean loss in nats a character over `count` batches spread evenly over all of them."""
    model.eval()
    count = min(count, len(batches))
    loss = characters = 0
    for i in range(count):
        idx, targets = batches[(2 * i + 1) * len(batches) // (2 * count)]
        with torch.autocast(device.split(":")[0], dtype, enabled=dtype != torch.float32):
            loss += model.loss(idx.to(device), targets.to(device)).item()
        characters += int((targets != IGNORE).sum())
    model.train()
    return loss / characters


def counting_baselines(corpus: Corpus) -> list[dict]:
    """The losses of models that only count, with their names for the page."""
    unigram, bigram = unigram_and_bigram(corpus.seen, corpus.val, corpus.vocabulary)
    return [
        {"zh": "只数单字", "en": "counting characters", "loss": unigram},
        {"zh": "只数相邻两字", "en": "counting pairs of characters", "loss": bigram},
    ]


def main(argv: list[str]) -> int:
    """Train; returns the exit code."""
    config, resume, overwrite = parse(argv, __doc__.splitlines()[0])
    device = pick_device(config.device)
    set_up_memory()

    # One process, or one of several that torchrun started.
    world, rank = 1, 0
    if "TORCHELASTIC_RUN_ID" in os.environ:
        world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if world > 1:
        device = device_of_process(device, int(os.environ["LOCAL_RANK"]))
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    first = rank == 0

    # The text and the folder.
    documents, extra, digest = read_texts(config.data, config.extra_data)
    if not config.probes:
        probe = Corpus(documents, config.fold).val[0][: config.block_size - 1]
        config = replace(config, probes=(probe,))
    corpus = Corpus(documents, config.fold, config.probes, extra)
    vocabulary = corpus.vocabulary
    model_config = config.model_config(len(vocabulary))
    check_memory(config, model_config, device)
    course = config.lr_decay_iters or config.max_iters
    train_set = TrainingBatches(
        corpus.train, corpus.extra, vocabulary, config.block_size, config.batch_size, course
    )
    val_set = Batches(corpus.val, vocabulary, config.block_size, config.batch_size)
    for probe in config.probes:
        try:
            vocabulary.encode(probe)
        except UnknownCharacterError as error:
            raise UsageError(f"the probe {probe}: {error}, with --probes") from None
        if not probe or BOUNDARY in probe:
            raise UsageError("a probe is one line of text: give at least one character")
        if len(probe) >= config.block_size:
            raise UsageError(f"the probe {probe} is longer than block_size {config.block_size}")
    checkpoint = Path(config.out_dir) / "ckpt.pt"
    state = load_checkpoint(checkpoint) if resume else None
    if state:
        check_same(config, digest, state)
    kind, dtype = device.split(":")[0], config.dtype
    if state and dtype == "auto" and state.get("device", kind) == kind:
        dtype = state["dtype"]  # to the last bit; on another kind of device another one is fast
    dtype = pick_dtype(dtype, device)
    if config.compile:
        check_compiler(device)

    # The model and its optimizers.
    torch.manual_seed(config.seed)
    model = GPT(model_config).to(device)
    optimizers = config.optimizers(model)
    step, tokens, elapsed, train_loss, baselines = 0, 0, 0.0, (0.0, 0), []
    val_loss, val_step = None, 0
    if state:
        with fitting(checkpoint):
            load_weights(model, state["model"])
            for optimizer, saved in zip(optimizers, state["optimizer"], strict=True):
                optimizer.load_state_dict(saved)
            step, tokens, elapsed, train_loss, baselines = (
                state[name] for name in ("step", "tokens", "elapsed_s", "train_loss", "baselines")
            )
            val_loss, val_step = state["val_loss"], state["val_step"]
    folder = RunFolder(config.out_dir, resume, overwrite) if first else None
    loss_of = TrainingLoss(model, config.compile)
    if world > 1:
        loss_of = DistributedDataParallel(loss_of, forward_sync_buffers=False)  # they never change

    def save() -> dict:
        """Write all that is needed to go on to the last bit; returns it."""
        state = {
            "model_config": asdict(model_config),
            "characters": "".join(vocabulary.characters),
            "model": model.state_dict(),
            "optimizer": [optimizer.state_dict() for optimizer in optimizers],
            "config": asdict(config) | {"probes": list(config.probes)},
            "data_sha256": digest,
            "device": kind,
            "dtype": str(dtype).removeprefix("torch."),
            "step": step,
            "tokens": tokens,
            "elapsed_s": time.perf_counter() - started,
            "train_loss": train_loss,
            "val_loss": val_loss,
            "val_step": val_step,
            "baselines": baselines,
        }
        save_checkpoint(folder.checkpoint, state)
        return state

    def look() -> float:
        """Evaluate on held-out documents and save the maps of this step."""
        count = len(val_set) if step == config.max_iters else config.eval_batches
        loss = evaluate(model, val_set, count, device, dtype)
        if not math.isfinite(loss):
            raise not_finite(step)
        for number, probe in enumerate(config.probes):
            path = map_path(folder.path, number, step)
            save_map(path, capture(model, vocabulary, probe, step, loss))
        return loss

    def log(loss: float | None, val: float | None, rate: float, speed: float | None) -> None:
        folder.log(
            step=step,
            train_loss=loss,
            val_loss=val,
            learning_rate=rate,
            tokens=tokens,
            tokens_per_s=speed,
            elapsed_s=time.perf_counter() - started,
        )

    stopping = Stopping()
    started = time.perf_counter() - elapsed
    bar = tqdm(total=config.max_iters, initial=step, unit="step", disable=not (first and TERMINAL))
    if first:
        parameters = sum(p.numel() for p in model.parameters())
        more = ""
        if extra:
            number = f"{len(corpus.extra):,} of {len(extra):,} extra ones"
            more = f" with {number} until step {train_set.switch:,}"
        say(
            f"{len(corpus.train):,} documents to train on{more}, {len(corpus.val):,} held out, "
            f"{len(vocabulary):,} characters; {parameters:,} parameters; {device}, "
            f"{str(dtype).removeprefix('torch.')} products, {torch.get_num_threads()} threads"
        )
        folder.start_metrics(step if state else -1)
        folder.write_text("config.toml", to_toml(config))  # max_iters may be new
        if not state:
            val_loss = look()
            log(None, val_loss, 0.0, None)
            state = save()

    busy_s, busy_tokens = 0.0, 0
    stop = 0  # the signal to stop after a step, looked at once a step: what is stopped was saved
    while step < config.max_iters and not stop:
        step_started = time.perf_counter()
        if config.dropout:  # decided by the step alone, as the batch is: going on draws the same
            torch.manual_seed(config.seed + step * world + rank)
        # Each process takes every world-th row; all of them together take the mean over the batch.
        idx, targets = train_set.batch(config.seed, step)
        count = int((targets != IGNORE).sum())
        parts = min(config.accumulation, len(idx))
        rows = torch.arange(len(idx))[rank::world].tensor_split(parts)
        batch_loss = torch.zeros(2, device=device)
        for part in rows:
            last = part is rows[-1]
            wait = contextlib.nullcontext() if last or world == 1 else loss_of.no_sync()
            with wait, torch.autocast(kind, dtype, enabled=dtype != torch.float32):
                loss = loss_of(idx[part].to(device), targets[part].to(device)) * (world / count)
                loss.backward()  # DistributedDataParallel divides the sum over processes by world
            batch_loss[0] += loss.detach() / world
        if world > 1:  # agree on the loss, and on stopping after the same step
            batch_loss[1] = stopping.signal or 0
            dist.all_reduce(batch_loss)
            stop = int(batch_loss[1])
        mean_loss = batch_loss[0].item()
        if not math.isfinite(mean_loss):
            raise not_finite(step)
        if config.grad_clip:
            clip_gradients(model, config.grad_clip)
        share = schedule(step, course, config.warmup_iters, config.cooldown)
        for optimizer in optimizers:
            optimizer.step(share)
        model.zero_grad()

        step += 1
        tokens += count
        train_loss = (train_loss[0] + mean_loss * count, train_loss[1] + count)
        busy_s += time.perf_counter() - step_started
        busy_tokens += count
        if not first:
            continue
        due = step % config.eval_interval == 0 or step == config.max_iters
        if due:
            hand_back_memory()
            val_loss, val_step = look(), step
        if due or step % config.log_interval == 0:
            mean, speed = train_loss[0] / train_loss[1], busy_tokens / busy_s
            log(mean, val_loss if due else None, config.learning_rate * share, speed)
            words = f"loss {mean:.3f}, val loss {val_loss:.3f}, {speed:,.0f} characters/s"
            bar.set_postfix_str(words)
            if due and not TERMINAL:
                say(f"step {step}: {words}")
            train_loss, busy_s, busy_tokens = (0.0, 0), 0.0, 0
        if due and not baselines:
            baselines = counting_baselines(corpus)
        if world == 1:
            stop = stopping.signal or 0
        if due or stop:
            state = save()
            hand_back_memory()
        bar.update()
    bar.close()

    if world > 1:
        dist.destroy_process_group()
    if first:
        folder.close()
    if step < config.max_iters:
        if first:
            say(f"stopped at step {step}, saved in {folder.checkpoint}: go on with --resume")
        return 128 + (stopping.signal or stop)
    if first:
        for remembered in state.pop("optimizer"):
            for moments in remembered:  # they are in the checkpoint, and the page takes memory
                moments.clear()
        report(model, vocabulary, state, folder.path)
        print(f"final: step={step} val_loss={val_loss:.4f}", flush=True)
    return 0


def report(model: GPT, vocabulary: Vocabulary, state: dict, out_dir: Path) -> None:
    """What was reached: the loss beside two baselines, a poem, a look at the first probe, the page."""
    print(f"held-out loss: {state['val_loss']:.3f} nats a character")
    for baseline in state["baselines"]:
        print(f"    beside it, {baseline['en']}: {baseline['loss']:.3f}")
    model = model.cpu().eval()
    start = [vocabulary.encode(BOUNDARY)]
    seed = state["config"]["seed"]
    [poem] = Engine(model).generate(start, 80, Sampling(temperature=0.8), seed, stop=0)
    print("\na poem:", vocabulary.decode(poem).strip(BOUNDARY))
    probe = state["config"]["probes"][0]
    map = capture(model, vocabulary, probe, state["step"], state["val_loss"])
    print("\n" + look_at(map, "光" if "光" in probe else probe[-1], most=1))
    page = out_dir / "attention.html"
    size = write_run_page(out_dir, page, model, vocabulary, state)
    print(
        f"\nthe page: {page} ({size / 1e6:.2f} MB); more: python view.py {quoted(out_dir)} --help"
    )
    flag = "" if out_dir == Path(TrainConfig.out_dir) else f" --out_dir {quoted(out_dir)}"
    files = "ckpt.pt, metrics.jsonl, config.toml, attention/"
    print(f"in {out_dir}: {files}; next: python sample.py{flag}")


def not_finite(step: int) -> UsageError:
    """What to raise where a loss is NaN or infinite, before anything of that step is saved."""
    return UsageError(
        f"the loss is not finite at step {step}: lower --learning_rate and --muon_learning_rate or "
        "set --grad_clip 1; the last good checkpoint is kept"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(main, CheckpointError, DataError, MachineError, MapError)
