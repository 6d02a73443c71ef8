"""Training over ranks: one run, from the first rank's state."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import Model
from mlx_gateloop.ops.over_ranks import gate_loop_over_ranks
from mlx_gateloop.train.checkpoint import Progress, assign_state, read_newest, state_of
from mlx_gateloop.train.config import TrainConfig
from mlx_gateloop.train.fused_update import Optimizer

TOKENIZER = ("*token*.json", "*.jinja")  # the files that `tokenizer.save_pretrained` writes


def seed_step(world: World, seed: int, step: int) -> None:
    """Draw dropout as a function of the run's seed, the step and the rank, if there are several."""
    if world.size > 1:
        sequence = np.random.SeedSequence((seed, step, world.rank))
        mx.random.seed(int(sequence.generate_state(1, np.uint64)[0]))


def read_first(world: World, checkpoint: Path) -> tuple[Path, Progress, dict[str, object]]:
    """Read the header of the checkpoint to resume, which only the first rank must have."""

    def read() -> tuple[str, dict[str, Any], dict[str, object]]:
        path, progress, identity = read_newest(checkpoint)
        return str(path), asdict(progress), identity

    path, progress, identity = world.broadcast(read, "checkpoint")
    return Path(path), Progress(**progress), identity


@contextmanager
def files_of_first(world: World, directory: Path, *patterns: str) -> Iterator[Path]:
    """Yield a directory with the first rank's text files: its own there, a copy on the others."""

    def read() -> dict[str, str]:
        files = [path for pattern in patterns for path in directory.glob(pattern)]
        return {path.name: path.read_text(encoding="utf-8") for path in files}

    if world.size == 1:
        yield directory
        return
    files = world.broadcast(read, "files of the run")
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / Path(name).name).write_text(text, encoding="utf-8")
        yield Path(folder)


def divided(world: World, config: TrainConfig, rows: int) -> World:
    """Divide the ranks into groups that share sequences; each gets a part of a batch's `rows`."""
    world = world.with_sequences_over(config.sequence_parallel)
    batch_size, length, groups = config.data.batch_size, config.data.length, world.groups
    shares = world.sequence > 1
    if shares and rows < batch_size and rows % groups:
        raise InputError(f"the text has {rows} pieces for {groups} groups of ranks; give more text")
    if batch_size < groups or (shares and batch_size % groups):
        names, advice = ("groups of ranks", "a multiple of") if shares else ("ranks", "at least")
        reason = f"{batch_size} sequences cannot be divided among {groups} {names}"
        raise InputError(f"data.batch_size: {reason}; give {advice} {groups}")
    if length < world.sequence:
        raise InputError(f"data.length: {length} tokens are fewer than the {world.sequence} ranks")
    return world


def share_sequences(world: World, model: Model) -> None:
    """Make the layers compute on this rank's part of each sequence, if ranks share them."""
    if world.sequence == 1:
        return
    if model.args.conv_size or model.args.mixer != "gate_loop":
        kind = "convolution" if model.args.conv_size else f"{model.args.mixer} model"
        raise InputError(f"sequence_parallel: expected 1 with a {kind}")
    for layer in model.layers:
        operator = partial(gate_loop_over_ranks, world.gather_parts, world.position)
        layer.time_mixing.operator = operator


def share_state(world: World, model: nn.Module, optimizer: Optimizer) -> None:
    """Give all ranks the first rank's weights, optimizer state and random state, bit for bit."""
    if world.size == 1:
        return
    shared = {}
    for name, array in state_of(model, optimizer).items():
        raw = array.reshape(-1).view(mx.uint8)
        raw = raw if world.is_first else mx.zeros_like(raw)
        raw = world.sum(raw, "exchange of weights")
        shared[name] = raw.view(array.dtype).reshape(array.shape)
    assign_state(shared, model, optimizer)
