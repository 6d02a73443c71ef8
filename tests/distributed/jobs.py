"""Functions that `distributed.nursery` runs on each rank; they return JSON values."""

import json
import os
import signal
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.cli import run
from mlx_gateloop.distributed.world import PeerLost, World
from mlx_gateloop.errors import InputError
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.over_ranks import gate_loop_over_ranks
from mlx_gateloop.train.evaluate import require_same


def exchanges(world: World):
    """One of each exchange."""
    value = {"rank": world.rank, "text": "ä" * world.rank}
    part = world.part(7)
    return {
        "gathered": world.gather(value, "test"),
        "first": world.broadcast(lambda: [world.rank, float("inf")], "test"),
        "sum": world.sum(mx.arange(5) * (world.rank + 1), "test").tolist(),
        "any": [world.any(world.rank == 1, "test"), world.any(False, "test")],
        "part": [part.start, part.stop],
        "messages": messages(world),
        "gradients": gradients(world),
    }


def messages(world: World):
    """Collect the other ranks' errors for another number, another model and another text."""
    model = nn.Linear(2, 2, bias=False)
    model.weight = mx.zeros_like(model.weight) + world.rank
    same = nn.Linear(2, 2, bias=False)
    same.weight = mx.zeros_like(same.weight)
    text = np.array([1, world.rank])
    calls = (
        partial(world.assert_equal, {"version": "1.0", "seed": min(world.rank, 1)}),
        partial(require_same, world, model, text[:1]),
        partial(require_same, world, same, text),
        partial(require_same, world, same, text[:1]),
    )
    return [message(call) for call in calls]


def message(call):
    try:
        call()
    except InputError as error:
        return str(error)


def gradients(world: World):
    """Sums of a tree whose parts fill several buffers, in both dtypes, and their distance."""
    from mlx_gateloop.train import exchange

    exchange.BUFFER_BYTES, exchange.SHARED_BYTES_PER_RANK = 4000, 2000
    draw = np.random.default_rng(0)
    shapes = {"a": (37, 11), "b": {"c": (1000,), "d": [(3,), (1,)]}, "e": (700, 3)}
    trees = [_drawn(shapes, draw) for _ in range(world.size)]
    distances = {}
    group, here = world._group, ["this machine"] * world.size
    worlds = {"machines": world, "one machine": World(group, here)}
    worlds["GPUs"] = World(group, world.hosts, overlaps=True)
    for dtype, (name, of) in product((mx.float32, mx.bfloat16), worlds.items()):
        gradient = _map(lambda x: mx.array(x) / 2, trees[world.rank])
        finish = exchange.start_sum(of, gradient, dtype)
        mx.eval(gradient)
        leaves = zip(_leaves(finish()), *map(_leaves, trees), strict=True)
        gaps = [np.abs(np.array(leaf) * 2 - sum(parts)).max() for leaf, *parts in leaves]
        distances[f"{name} {dtype}"] = float(max(gaps))
    return distances


def lost_beside(world: World):
    """The message when the other rank dies while sums are exchanged beside computing."""
    from mlx_gateloop.train import exchange

    of = World(world._group, world.hosts, overlaps=True)
    gradient = {name: mx.ones(1 << 22) for name in "abcdef"}
    finish = exchange.start_sum(of, gradient, mx.float32)
    if not world.is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        mx.eval(finish())
    except PeerLost as error:
        return str(error)


def peak(world: World, config: str, data: str, length: str, *settings: str):
    """Peak memory of MLX's arrays in steps on one sequence a group, in MB.

    Args:
        world: The ranks.
        config: A file.
        data: A file.
        length: Tokens of the sequence.
        settings: Others, `name=number`.
    """
    from mlx_gateloop.train import TrainConfig, dry_run

    dry_run.BUDGET = 0.0
    shape = {"data.length": int(length), "data.batch_size": world.groups, "log_every": 1}
    shape |= {"sequence_parallel": world.sequence}
    shape |= {name: int(value) for name, value in (word.split("=") for word in settings)}
    loaded = TrainConfig.load(config, shape)
    return dry_run.estimate(loaded, data, world).peak_bytes / 2**20


FORMS = {  # shapes of q and k, v, a; the transition's form; mask; reverse
    "real": ((2, 37, 5), None, "real"),
    "complex": ((2, 37, 5), None, "complex"),
    "near one": ((1, 4096, 3), None, "near one"),
    "resets": ((2, 50, 4), None, "resets"),
    "masked": ((3, 41, 4), None, "complex masked"),
    "reverse": ((2, 37, 5), None, "complex reverse"),
    "masked, reverse": ((2, 39, 3), None, "resets masked reverse"),
    "heads": ((2, 70, 2, 3), (2, 70, 2, 4), "complex"),
    "real heads": ((2, 37, 2, 3), (2, 37, 2, 4), "real"),
    "a transition a head": ((1, 67, 2, 3), (1, 67, 2, 2), "complex head masked"),
    "heads, reverse": ((1, 67, 2, 3), (1, 67, 2, 2), "resets reverse"),
}


def sequences(world: World):
    """Largest distance of y and the gradients of a divided sequence, relative to their size."""
    return {name: _distances(world, *form) for name, form in FORMS.items()}


def _distances(world: World, shape, shape_v, kind):
    draw = np.random.default_rng(len(kind))
    q, k, weights = (draw.normal(size=shape).astype(np.float32) for _ in range(3))
    v = draw.normal(size=shape_v or shape).astype(np.float32)
    weights = draw.normal(size=v.shape).astype(np.float32)
    gates = (*shape[:-1], 1) if "head" in kind else shape
    log = np.log(draw.uniform(0.3, 1, gates))
    if "near one" in kind:
        log = np.full(gates, -1e-5)
    if "resets" in kind:
        log[draw.random(gates) < 0.1] = -np.inf
    phase = None if kind.startswith("real") else draw.normal(size=gates).astype(np.float32)
    log = log.astype(np.float32)
    mask = mx.array(draw.random(shape[:2]) < 0.8) if "masked" in kind else None

    def loss(operator, part, *arrays):
        q, k, v, weights, log, *phase = (mx.array(x)[:, part] for x in arrays)
        masked = None if mask is None else mask[:, part]
        y, _ = operator(
            q, k, v, Transition.polar(log, *phase), mask=masked, reverse="reverse" in kind
        )
        return (y * weights).sum(), y

    arrays = [mx.array(x) for x in (q, k, v, weights, log, phase) if x is not None]
    numbers = [0, 1, 2, *range(4, len(arrays))]
    part = world.part_of_sequence(shape[1])
    ours = partial(loss, partial(gate_loop_over_ranks, world.gather_parts, world.place), part)
    expected = partial(loss, gate_loop, slice(None))
    results = []
    for function in (ours, expected):
        (_, y), gradients = mx.value_and_grad(function, argnums=numbers)(*arrays)
        mx.eval(y, gradients)
        results.append([np.array(x) for x in (y, *gradients)])
    (y, *gradients), (y_whole, *whole) = results
    gaps = [np.abs(y - y_whole[:, part]).max() / np.abs(y_whole).max()]
    gaps += [
        np.abs(x[:, part] - z[:, part]).max() / np.abs(z).max()
        for x, z in zip(gradients, whole, strict=True)
    ]
    return float(max(gaps))


def another_seed(world: World, *argv: str):
    """Train with a seed of its own on each rank."""
    return run([*argv, "--seed", str(world.rank)], world)


def recorded(world: World, stop_at: str, folder: str, *argv: str):
    """Train until a step, at which the first rank is interrupted, and record what was read."""
    from mlx_gateloop.train.setup import Trainer

    draw, rows = Trainer._batches, {}

    def batches(trainer, step):
        if step + 1 == int(stop_at) and world.is_first:
            os.kill(os.getpid(), signal.SIGINT)
        for batch in draw(trainer, step):
            rows[step] = [sha256(row.tobytes()).hexdigest() for row in np.stack(batch, 1)]
            yield batch

    Trainer._batches = batches
    code, line = run(list(argv), world)
    Path(folder, f"{world.rank}-{stop_at}.json").write_text(json.dumps(rows))
    return code, line


def _drawn(shape, draw):
    if isinstance(shape, tuple):
        return draw.normal(size=shape).astype(np.float32)
    return _map(lambda leaf: _drawn(leaf, draw), shape)


def _map(function, tree):
    if isinstance(tree, dict):
        return {key: _map(function, value) for key, value in tree.items()}
    return [_map(function, value) for value in tree] if isinstance(tree, list) else function(tree)


def _leaves(tree):
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(value)
    else:
        yield tree
