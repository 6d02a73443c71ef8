"""Functions that `distributed.nursery` runs on each rank; they return JSON values."""

import os
import signal
from functools import partial
from itertools import product

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from helpers.errors import refusal
from mlx.utils import tree_flatten, tree_map

from mlx_gateloop.cli import run
from mlx_gateloop.distributed.world import PeerLost, World
from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.over_ranks import gate_loop_over_ranks
from mlx_gateloop.train.evaluate import require_same


def exchanges(world):
    part = world.part(7)
    return {
        "gathered": world.gather({"rank": world.rank, "text": "ä" * world.rank}, "test"),
        "first": world.broadcast(lambda: [world.rank, float("inf")], "test"),
        "sum": world.sum(mx.arange(5) * (world.rank + 1), "test").tolist(),
        "any": [world.any(world.rank == 1, "test"), world.any(False, "test")],
        "part": [part.start, part.stop],
        "messages": messages(world),
        "gradients": gradients(world),
    }


def messages(world):
    """Collect the other ranks' errors for another model and another text."""
    models = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    for model, value in zip(models, (world.rank, 0), strict=True):
        model.weight = mx.full((2, 2), float(value))
    text = np.array([1, world.rank])
    return [
        refusal(require_same, world, models[0], text[:1]),
        refusal(require_same, world, models[1], text),
        require_same(world, models[1], text[:1]),
    ]


def gradients(world):
    """Sums of a tree whose parts fill several buffers, in both dtypes, and their distance."""
    from mlx_gateloop.train import exchange

    exchange.BUFFER_BYTES, exchange.SHARED_BYTES_PER_RANK = 4000, 2000
    draw = np.random.default_rng(0)
    like = {"a": np.ones((37, 11)), "b": {"c": np.ones(1000), "d": [np.ones(3), np.ones(1)]}}
    like["e"] = np.ones((700, 3))
    trees = [
        tree_map(lambda x: draw.normal(size=x.shape).astype(np.float32), like)
        for _ in range(world.size)
    ]
    expected = dict(tree_flatten(tree_map(lambda *parts: sum(parts), *trees)))
    distances = {}
    group, here = world._group, ["this machine"] * world.size
    worlds = {"machines": world, "one machine": World(group, here)}
    worlds["GPUs"] = World(group, world.hosts, overlaps=True)
    for dtype, (name, of) in product((mx.float32, mx.bfloat16), worlds.items()):
        gradient = tree_map(lambda x: mx.array(x) / 2, trees[world.rank])
        finish = exchange.start_sum(of, gradient, dtype)
        mx.eval(gradient)
        gaps = [np.abs(np.array(x) * 2 - expected[key]).max() for key, x in tree_flatten(finish())]
        assert len(gaps) == len(expected)
        distances[f"{name} {dtype}"] = float(max(gaps))
    return distances


def lost_beside(world):
    """The message when the other rank dies while sums are exchanged beside computing."""
    from mlx_gateloop.train import exchange

    of = World(world._group, world.hosts, overlaps=True)
    finish = exchange.start_sum(of, {name: mx.ones(1 << 22) for name in "abcdef"}, mx.float32)
    if not world.is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        mx.eval(finish())
    except PeerLost as error:
        return str(error)


def peak(world, config, data, length):
    """Peak memory of MLX's arrays in steps on one sequence of `length` tokens a group, in MB."""
    from mlx_gateloop.train import TrainConfig, dry_run

    dry_run.BUDGET = 0.0
    shape = {"data.length": int(length), "data.batch_size": world.groups, "log_every": 1}
    loaded = TrainConfig.load(config, shape | {"sequence_parallel": world.sequence})
    dry_run.estimate(loaded, data, world)
    return mx.get_peak_memory() / 2**20


FORMS = {  # shapes of q and k, and of v; the words are looked for below
    "real": ((2, 37, 5), (2, 37, 5)), "near one": ((1, 4096, 3), (1, 4096, 3)),
    "resets": ((2, 50, 4), (2, 50, 4)), "masked": ((3, 41, 4), (3, 41, 4)),
    "reverse": ((2, 37, 5), (2, 37, 5)), "resets masked reverse": ((2, 39, 3), (2, 39, 3)),
    "heads": ((2, 70, 2, 3), (2, 70, 2, 4)), "real heads": ((2, 37, 2, 3), (2, 37, 2, 4)),
    "one transition a head masked": ((1, 67, 2, 3), (1, 67, 2, 2)),
    "heads resets reverse": ((1, 67, 2, 3), (1, 67, 2, 2)),
}  # fmt: skip


def sequences(world):
    """Largest distance of y and the gradients of a divided sequence, relative to their size."""
    return {name: _distance(world, name, *shapes) for name, shapes in FORMS.items()}


def _distance(world, kind, shape, shape_v):
    draw = np.random.default_rng(len(kind))
    gates = (*shape[:-1], 1) if "one transition" in kind else shape
    q, k, v, weights, phase = (
        mx.array(draw.normal(size=s).astype(np.float32))
        for s in (shape, shape, shape_v, shape_v, gates)
    )
    log = np.log(draw.uniform(0.3, 1, gates)) if "near one" not in kind else np.full(gates, -1e-5)
    if "resets" in kind:
        log[draw.random(gates) < 0.1] = -np.inf
    mask = mx.array(draw.random(shape[:2]) < 0.8) if "masked" in kind else None
    arrays = [q, k, v, mx.array(log.astype(np.float32)), *([] if "real" in kind else [phase])]

    def loss(operator, part, *arrays):
        q, k, v, *gates = (x[:, part] for x in arrays)
        masked = None if mask is None else mask[:, part]
        y, _ = operator(q, k, v, Transition.polar(*gates), mask=masked, reverse="reverse" in kind)
        return (y * weights[:, part]).sum(), y

    part = world.part_of_sequence(shape[1])
    ours = partial(loss, partial(gate_loop_over_ranks, world.gather_parts, world.position), part)
    results = []
    for function in (ours, partial(loss, gate_loop, slice(None))):
        (_, y), gradients = mx.value_and_grad(function, argnums=list(range(len(arrays))))(*arrays)
        mx.eval(y, gradients)
        results.append([np.array(x) for x in (y, *gradients)])
    (y, *gradients), (y_whole, *whole) = results
    gaps = [np.abs(y - y_whole[:, part]).max() / np.abs(y_whole).max()]
    for x, z in zip(gradients, whole, strict=True):
        gaps.append(np.abs(x[:, part] - z[:, part]).max() / np.abs(z).max())
    return float(max(gaps))


def another_seed(world, *argv):
    return run([*argv, "--seed", str(world.rank)], world)


def stopped(world, stop_at, *argv):
    """Train until a step, at which the first rank is interrupted."""
    from mlx_gateloop.train.setup import Trainer

    draw = Trainer._batches

    def batches(trainer, step):
        if step + 1 == int(stop_at) and world.is_first:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(trainer, step)

    Trainer._batches = batches
    return run(list(argv), world)
