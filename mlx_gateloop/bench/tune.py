"""`gateloop bench ops --tune`: the best division of the kernels' work on this GPU, measured."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import mlx.core as mx

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import write_text
from mlx_gateloop.ops.backends import BACKENDS
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import INTERVAL, Arrays, Kernels, Variant, run
from mlx_gateloop.ops.gpu.launch_config import (
    SEGMENTS,
    Join,
    Pass,
    Plan,
    Tuning,
    device,
    kind,
    plan,
    tunings_file,
)
from mlx_gateloop.ops.transition import FORMS

Choice = TypeVar("Choice")
Shape = tuple[int, int, int]
PASSES: tuple[Pass, ...] = ("forward", "backward")
DTYPES = (mx.float32, mx.bfloat16)
GROUPS = [n << i for i in range(1, 9) for n in (2, 3)]  # 4, 6, 8, 12, 16 ... 768
PARTS = (256, 512, 1024, 2048, 2**31 - 1)  # the last: never
WORTH = 0.97  # share of the default's time; smaller gains are noise
HARDLY_MORE = 1.3
TURNS, BUDGET = 7, 0.4  # a measurement ends after this many seconds
LONGEST = 90.0  # seconds in which measurements begin; one takes seconds if it compiles kernels


@dataclass(frozen=True)
class Work:
    """Timed work: a pass with complex sigmoid gates in float32, and q, k and v of `dtype`."""

    name: Pass
    dtype: mx.Dtype
    shape: Shape
    plan: Plan


Seconds = Callable[[Work], float]  # infinite if the GPU rejects it


class Within:
    """Measurements until `limit` seconds have passed; then all work takes infinitely long."""

    def __init__(
        self, seconds: Seconds, limit: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._clock = seconds, clock
        self._end = clock() + limit
        self.ended = False  # before something could be measured

    def __call__(self, work: Work) -> float:
        self.ended = self._clock() >= self._end
        return math.inf if self.ended else self._seconds(work)


def tune(seconds: Seconds, default: Tuning) -> Tuning:
    """Find the best tuning of a device by timing it; what cannot be timed keeps its default."""
    plenty = _plenty(seconds) or 2 * default.cores
    works = list(itertools.product(PASSES, DTYPES))
    small, large = (max(1, plenty // 4), 2048, 32), (2 * plenty, 512, 32)
    few = {kind(*work): _join(seconds, *work, small, (16, False)) for work in works}
    many = {kind(*work): _join(seconds, *work, large, (8, False)) for work in works}
    tuning = Tuning(max(1, plenty // 2), few, many, default.shortest_part)
    return replace(tuning, shortest_part=_shortest_part(seconds, tuning))


def _plenty(seconds: Seconds) -> int | None:
    """Find the most threadgroups that take hardly more time than a few; None without all times."""
    times = {B: seconds(Work("forward", mx.float32, (B, 512, 32), Plan(8))) for B in GROUPS}
    if math.inf in times.values():
        return None
    return max(B for B in GROUPS if times[B] <= HARDLY_MORE * times[GROUPS[0]])


def _join(seconds: Seconds, name: Pass, dtype: mx.Dtype, shape: Shape, usual: Join) -> Join:
    def timed(join: Join) -> float:
        return seconds(Work(name, dtype, shape, Plan(join[0], fold=join[1])))

    return _best(timed, itertools.product(SEGMENTS, (False, True)), usual)


def _shortest_part(seconds: Seconds, tuning: Tuning) -> int:
    shape, work = (1, 32768, 32), kind("forward", mx.float32)

    def timed(steps: int) -> float:
        cut = plan(replace(tuning, shortest_part=steps), work, *shape)
        return seconds(Work("forward", mx.float32, shape, cut))

    return _best(timed, PARTS, tuning.shortest_part)


def _best(timed: Callable[[Choice], float], choices: Iterable[Choice], usual: Choice) -> Choice:
    """Return the fastest choice if it is worth leaving the usual one, which is timed first."""
    times = {usual: timed(usual)}
    times |= {choice: timed(choice) for choice in choices if choice != usual}
    fastest = min(times, key=lambda choice: times[choice])
    return fastest if times[fastest] < WORTH * times[usual] else usual


def tune_this_gpu() -> str:
    reasons = {name: BACKENDS[name].why_missing() for name in ("metal", "cuda")}
    platform = next((name for name, reason in reasons.items() if reason is None), None)
    if platform is None:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise InputError(f"--tune measures the kernels of a GPU ({listed})")
    kernels = gpu.kernels(platform)
    limited = Within(stopwatch(kernels), LONGEST)
    kernels.tuning = tune(limited, kernels.tuning)
    _arrays.cache_clear()
    lines = [f"{device()}: {kernels.tuning}"]
    if limited.ended:
        lines.append(f"the rest of it is the default: {LONGEST:.0f} s were over")
    try:
        lines.append(f"kept in {keep(device(), kernels.tuning)}")
    except OSError as error:
        lines.append(f"not kept beyond this run: {error}")
    return "\n".join(lines)


def keep(device: str, tuning: Tuning) -> Path:
    """Add a device's tuning to the file of tunings, and return its path."""
    path = tunings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    write_text(path, json.dumps(known | {device: asdict(tuning)}, indent=2) + "\n")
    return path


def stopwatch(kernels: Kernels) -> Seconds:
    """Time work on the kernels of a device: the median of some turns after the first."""
    variant = Variant(FORMS["sigmoid"], True)

    def seconds(work: Work) -> float:
        x = _arrays(work.dtype, work.shape)
        samples: list[float] = []
        try:
            mx.eval(run(kernels, work.name, variant, work.plan, x))
            while len(samples) < TURNS and sum(samples) < BUDGET:
                begin = time.perf_counter()
                mx.eval(run(kernels, work.name, variant, work.plan, x))
                samples.append(time.perf_counter() - begin)
        except (RuntimeError, ValueError):  # this GPU rejects so many segments
            return math.inf
        return statistics.median(samples)

    return seconds


@lru_cache(1)
def _arrays(dtype: mx.Dtype, shape: Shape) -> Arrays:
    B, L, D = shape
    x = {name: mx.random.normal(shape).astype(dtype) for name in ("q", "k", "v", "dy")}
    x |= {name: mx.random.normal(shape) for name in ("first", "second")}
    x["states"] = mx.random.normal((B, -(-L // INTERVAL), 2, D))
    x |= {name: mx.random.normal((B, 2, D)) for name in ("h0", "dh1")}
    mx.eval(x)
    return x
