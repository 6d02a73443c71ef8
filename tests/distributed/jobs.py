"""Functions that `distributed.nursery` runs on each rank; they return JSON values."""

import json
import os
import signal
from hashlib import sha256
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_gateloop.cli import run
from mlx_gateloop.distributed.world import World
from mlx_gateloop.errors import InputError


def exchanges(world: World):
    """One of each exchange."""
    value = {"rank": world.rank, "text": "ä" * world.rank}
    part = world.part(7)
    return {
        "gathered": world.gather(value, "test"),
        "first": world.first(lambda: [world.rank, float("inf")], "test"),
        "sum": world.sum(mx.arange(5) * (world.rank + 1), "test").tolist(),
        "any": [world.any(world.rank == 1, "test"), world.any(False, "test")],
        "part": [part.start, part.stop],
    }


def differ(world: World):
    """Two of the ranks have another number than the first."""
    try:
        world.agree({"version": "1.0", "seed": min(world.rank, 1)})
    except InputError as error:
        return str(error)
    return "agreed"


def gradients(world: World):
    """Sums of a tree whose parts fill several buffers, in both dtypes, and their distance."""
    from mlx_gateloop.train import exchange

    exchange.BUFFER_BYTES = 4000
    draw = np.random.default_rng(0)
    shapes = {"a": (37, 11), "b": {"c": (1000,), "d": [(3,), (1,)]}, "e": (700, 3)}
    trees = [_drawn(shapes, draw) for _ in range(world.size)]
    distances = {}
    for dtype in (mx.float32, mx.bfloat16):
        summed = exchange.sum_gradient(world, _map(mx.array, trees[world.rank]), dtype)
        leaves = zip(_leaves(summed), *map(_leaves, trees), strict=True)
        gaps = [np.abs(np.array(leaf) - sum(parts)).max() for leaf, *parts in leaves]
        distances[str(dtype)] = float(max(gaps))
    return distances


def another_seed(world: World, *argv: str):
    """Train with a seed of its own on each rank."""
    return run([*argv, "--seed", str(world.rank)], world)


def recorded(world: World, stop_at: str, folder: str, *argv: str):
    """Train until a step, at which the first rank is interrupted, and record what was read."""
    from mlx_gateloop.train import loop

    draw, rows = loop.step_batches, {}

    def step_batches(config, source, step, world):
        if step + 1 == int(stop_at) and world.is_first:
            os.kill(os.getpid(), signal.SIGINT)
        for batch in draw(config, source, step, world):
            rows[step] = [sha256(row.tobytes()).hexdigest() for row in np.stack(batch, 1)]
            yield batch

    loop.step_batches = step_batches
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
