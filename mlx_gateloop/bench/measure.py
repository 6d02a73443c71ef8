"""Median times of candidates that take turns, peak memory, and number formats."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_reduce

TURNS = 7
FEWEST_TURNS, BUDGET = 3, 10.0  # a candidate stops early after this many seconds

Run = Callable[[], object]
Function = Callable[..., Any]
Others = Callable[..., dict[str, Any]]  # more rows for a table, from its name and its inputs


@dataclass(frozen=True)
class Candidate:
    """Runs to time; each returns when its work is done."""

    forward: Run  # the computation
    gradient: Run  # its gradients for a given cotangent, including the forward pass
    is_mlx: bool = True  # MLX allocates its memory


def mlx_arrays(arrays: Sequence[Any]) -> list[mx.array]:
    """Evaluate NumPy arrays as MLX's."""
    result = [mx.array(array) for array in arrays]
    mx.eval(result)
    return result


def mlx_run(function: Function, *arrays: object) -> Run:
    """Make a run of an MLX function, with its results evaluated."""

    def evaluated() -> object:
        result = function(*arrays)
        mx.eval(result)
        return result

    return evaluated


def mlx_candidate(
    function: Function, arrays: Sequence[Any], cotangents: Sequence[Any]
) -> Candidate:
    """Time an MLX function, and its gradients by all `arrays`."""
    gradient = mlx_run(lambda: mx.vjp(function, list(arrays), list(cotangents))[1])
    return Candidate(mlx_run(function, *arrays), gradient)


def median_times(runs: Mapping[str, Run]) -> dict[str, float]:
    """Measure the seconds of each run; they take turns, each once untimed before."""
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
    """The peak of MLX's memory during a run, beyond its memory before."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    run()
    return mx.get_peak_memory() - before


def total_bytes(tree: object) -> int:
    return tree_reduce(lambda n, leaf: n + getattr(leaf, "nbytes", 0), tree, 0)


def milliseconds(seconds: float) -> str:
    return three_digits(seconds * 1e3)


def megabytes(count: float) -> str:
    return three_digits(count / 2**20)


def three_digits(value: float) -> str:
    """Format three significant digits, or all digits before the point."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def ratio(value: float, reference: float) -> str:
    quotient = value / reference
    return f"{quotient:.2f}" if quotient < 100 else f"{quotient:,.0f}"
