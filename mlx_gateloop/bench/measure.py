"""Medians of contenders that take turns, peak memory, and Markdown tables."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_reduce

TURNS = 7
FEWEST_TURNS, BUDGET = 3, 10.0  # a contender that has used this many seconds stops early
CACHE_BYTES = 4 << 30

Run = Callable[[], Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Contender:
    """What is timed; a run returns when the work is done.

    Args:
        forward: The computation.
        gradient: Its gradients for a given cotangent, with the forward pass that they need.
        is_mlx: Whether MLX's allocator sees its memory.
    """

    forward: Run
    gradient: Run | None = None
    is_mlx: bool = True


def mlx_run(function: Function, *arrays: Any) -> Run:
    """A call of an MLX function, evaluated."""

    def run() -> Any:
        result = function(*arrays)
        mx.eval(result)
        return result

    return run


def mlx_gradient(function: Function, arrays: Sequence[Any], cotangents: Sequence[Any]) -> Run:
    """The gradients by all `arrays`; the outputs themselves are not kept."""
    return mlx_run(lambda: mx.vjp(function, list(arrays), list(cotangents))[1])


def mlx_contender(
    function: Function, arrays: Sequence[Any], cotangents: Sequence[Any] | None
) -> Contender:
    gradient = None if cotangents is None else mlx_gradient(function, arrays, cotangents)
    return Contender(mlx_run(function, *arrays), gradient)


def median_times(runs: Mapping[str, Run]) -> dict[str, float]:
    """Seconds of each run; they take turns, so that a slow moment of the machine hits all.

    In its turn each runs once before it is timed: compiled, its caches filled, and not charged for
    returning the memory of the one before.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    used = dict.fromkeys(runs, 0.0)
    for turn in range(TURNS):
        for name, run in runs.items():
            if turn >= FEWEST_TURNS and used[name] > BUDGET:
                continue
            start = time.perf_counter()
            run()
            began = time.perf_counter()
            run()
            ended = time.perf_counter()
            samples[name].append(ended - began)
            used[name] += ended - start
    return {name: statistics.median(values) for name, values in samples.items()}


def peak_bytes(run: Run) -> int:
    """The most memory MLX held at once during the run, beyond what it held before."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run()
    return mx.get_peak_memory() - before


def total_bytes(tree: Any) -> int:
    """Bytes of the arrays in a tree, which may hold None."""
    return int(tree_reduce(lambda total, leaf: total + getattr(leaf, "nbytes", 0), tree, 0))


@contextmanager
def cache_limit(limit: int) -> Iterator[int]:
    """Set MLX's cache limit (bytes) for a while; gives the limit before."""
    previous = mx.set_cache_limit(limit)
    try:
        yield previous
    finally:
        mx.set_cache_limit(previous)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned."""
    cells = [header, ["---"] * len(header), *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def milliseconds(seconds: float) -> str:
    return three_digits(seconds * 1e3)


def megabytes(count: float) -> str:
    return three_digits(count / 2**20)


def three_digits(value: float) -> str:
    """Three digits that count, or all of those before the point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def ratio(value: float, reference: float) -> str:
    quotient = value / reference
    return f"{quotient:.2f}" if quotient < 100 else f"{quotient:,.0f}"
