"""Timing tables of the operator beside its peers: same arrays, one run, medians and ratios."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_gateloop as gl
from mlx_gateloop.ops.scan import hillis_steele, linear_recurrence

REPEATS = 7
LARGE_CACHE = 4 << 30
Run = Callable[[], Any]


def bench_ops(quick: bool = False, markdown: Path | None = None) -> None:
    """Print the tables of `gateloop bench ops`.

    Args:
        quick: Small sizes only.
        markdown: Also write them here.
    """
    with markdown.open("w") if markdown else nullcontext() as file:
        for part in _report(quick):
            print(part, flush=True)
            if file is not None:
                print(part, file=file, flush=True)


def _report(quick: bool) -> Iterator[str]:
    yield f"# gateloop bench ops{' --quick' if quick else ''}\n"
    yield _machine() + "\n"
    yield f"Median of {REPEATS} runs; contenders take turns, and each warms up in its turn."
    yield "Peak is MLX's memory, inputs not counted.\n"
    shape = (1, 256, 64) if quick else (1, 2048, 512)
    for title, cache in (("MLX's default cache limit", None), ("a 4 GB cache", LARGE_CACHE)):
        with _cache_limit(cache):
            yield f"## The scan at {shape}, {title}\n"
            yield _table(*_scans(shape)) + "\n"
            yield f"## gate_loop with its gates at {shape}, {title}\n"
            yield _table(*_gate_loops(shape, ["scan", "recurrent"])) + "\n"
    yield "## All modes at (1, 256, 16)\n"
    yield _table(*_gate_loops((1, 256, 16), ["scan", "recurrent", "attention"])) + "\n"
    with _cache_limit(LARGE_CACHE):
        yield "## Short sequences: the naive loop's time over the scan's\n"
        yield _short(quick) + "\n"
        yield "## Growth with the length, gate_loop at (1, L, 128)\n"
        yield _growth([1024, 2048] if quick else [1024 << i for i in range(7)])


def _machine() -> str:
    names = ["mlx", "jax", "torch", "gateloop-transformer"]
    packages = [f"{n} {_version(n)}" for n in names if _version(n)]
    absent = [n for n in names if not _version(n)]
    line = f"{platform.system()} {platform.machine()}, {mx.default_device()}; {', '.join(packages)}"
    return line + (f"; not installed, so left out: {', '.join(absent)}" if absent else "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _scans(shape: tuple[int, int, int]) -> tuple[list[str], list[list[Any]]]:
    """Rows of h_n = a_n h_{n-1} + x_n with complex a and real x; the first is ours."""
    rng = np.random.default_rng(0)
    size, angle = rng.uniform(0, 1, shape), rng.normal(size=shape)
    real, imaginary = size * np.cos(angle), size * np.sin(angle)
    x = rng.normal(size=shape).astype(np.float32)
    planes = mx.array(real.astype(np.float32)), mx.array(imaginary.astype(np.float32))
    inputs = mx.array(x)
    mx.eval(planes, inputs)

    arguments = (*planes, inputs)
    forward: dict[str, Run] = {
        "scan (ours)": lambda: our_scan(*arguments),
        "Hillis-Steele over the whole length": lambda: plain_hillis_steele(*arguments),
        "the same, its steps compiled": lambda: our_hillis_steele(*arguments),
        "naive loop": lambda: naive_loop(*arguments),
        "mx.cumsum (a floor)": lambda: mx.cumsum(inputs, axis=1),
    }
    gradient = {
        "scan (ours)": _mlx_gradient(our_scan, arguments),
        "Hillis-Steele over the whole length": _mlx_gradient(plain_hillis_steele, arguments),
    }
    a = (real + 1j * imaginary).astype(np.complex64)
    for module, name, peer in (
        ("jax", "jax.lax.associative_scan", _jax_scan),
        ("gateloop_transformer", "gateloop-transformer's scan (torch)", _torch_scan),
    ):
        if find_spec(module):
            forward[name], gradient[name] = peer(a, x)
    return _measure(forward, gradient)


def our_scan(re: mx.array, im: mx.array, x: mx.array) -> mx.array:
    zero = mx.zeros_like(x[:, 0])
    return linear_recurrence((re, im), (x,), (zero, zero))[0]


def our_hillis_steele(re: mx.array, im: mx.array, x: mx.array) -> mx.array:
    zero = mx.zeros_like(x[:, 0])
    return hillis_steele((re, im), (x,), (zero, zero), False)[0]


def plain_hillis_steele(re: mx.array, im: mx.array, x: mx.array) -> mx.array:
    """The textbook form in plain MLX operations, complex numbers as two arrays."""

    def shifted(array: mx.array, reach: int, fill: float) -> mx.array:
        start = mx.full(array[:, :reach].shape, fill)
        return mx.concatenate([start, array[:, :-reach]], axis=1)

    hr, hi, reach = x, mx.zeros_like(x), 1
    while reach < x.shape[1]:
        pr, pi = shifted(hr, reach, 0), shifted(hi, reach, 0)
        hr, hi = hr + re * pr - im * pi, hi + re * pi + im * pr
        pr, pi = shifted(re, reach, 1), shifted(im, reach, 0)
        re, im = re * pr - im * pi, re * pi + im * pr
        reach *= 2
    return hr


def naive_loop(re: mx.array, im: mx.array, x: mx.array) -> mx.array:
    """The recurrence as one would first write it."""
    hr = hi = mx.zeros_like(x[:, 0])
    states = []
    for n in range(x.shape[1]):
        hr, hi = re[:, n] * hr - im[:, n] * hi + x[:, n], re[:, n] * hi + im[:, n] * hr
        states.append(hr)
    return mx.stack(states, axis=1)


def _jax_scan(a: np.ndarray, x: np.ndarray) -> tuple[Run, Run]:
    import jax

    def combine(left: tuple, right: tuple) -> tuple:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def scan(a: Any, x: Any) -> Any:
        return jax.lax.associative_scan(combine, (a, x.astype(a.dtype)), axis=1)[1].real

    forward = jax.jit(scan)
    gradient = jax.jit(jax.grad(lambda a, x: scan(a, x).sum(), argnums=(0, 1)))
    arrays = jax.numpy.array(a), jax.numpy.array(x)
    return (
        lambda: jax.block_until_ready(forward(*arrays)),
        lambda: jax.block_until_ready(gradient(*arrays)),
    )


def _torch_scan(a: np.ndarray, x: np.ndarray) -> tuple[Run, Run]:
    import torch
    from gateloop_transformer.associative_scan import associative_scan

    gates, inputs = torch.tensor(a), torch.tensor(x)

    def combine(left: tuple, right: tuple) -> tuple:
        return left[0] * right[0], torch.addcmul(right[1], right[0], left[1])

    def scan(gates: Any, inputs: Any) -> Any:
        return associative_scan(combine, (gates, inputs.to(gates.dtype)))[1].real

    def forward() -> Any:
        with torch.no_grad():
            return scan(gates, inputs)

    def gradient() -> Any:
        leaves = [t.clone().requires_grad_() for t in (gates, inputs)]
        return torch.autograd.grad(scan(*leaves).sum(), leaves)

    return forward, gradient


def _gate_loops(shape: tuple[int, int, int], modes: list[str]) -> tuple[list[str], list[list[Any]]]:
    arguments = _gate_loop_arguments(shape)
    forward, gradient = {}, {}
    for mode in modes:
        function = _gate_loop(mode)
        forward[mode] = _call(function, arguments)
        gradient[mode] = _mlx_gradient(function, arguments)
    return _measure(forward, gradient)


def _gate_loop_arguments(shape: tuple[int, int, int]) -> tuple[mx.array, ...]:
    arguments = tuple(
        mx.random.normal(shape, key=key) for key in mx.random.split(mx.random.key(0), 5)
    )
    mx.eval(arguments)
    return arguments


def _gate_loop(mode: Any) -> Callable[..., mx.array]:
    def function(
        q: mx.array, k: mx.array, v: mx.array, gamma: mx.array, theta: mx.array
    ) -> mx.array:
        return gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta), mode=mode)[0]

    return function


def _call(function: Callable[..., mx.array], arguments: tuple[mx.array, ...]) -> Run:
    return lambda: function(*arguments)


def _mlx_gradient(function: Callable[..., mx.array], arguments: tuple[mx.array, ...]) -> Run:
    gradient = mx.grad(lambda *xs: function(*xs).sum(), argnums=tuple(range(len(arguments))))
    return lambda: gradient(*arguments)


def _short(quick: bool) -> str:
    lengths = [9, 16, 32] if quick else [9, 12, 16, 24, 32, 48, 64, 100, 128, 256, 512]
    rows = []
    for batch, width in ((1, 64), (1, 512), (8, 512), (32, 512)):
        row: list[Any] = [f"({batch}, L, {width})"]
        for length in lengths:
            xs = tuple(mx.random.uniform(shape=(batch, length, width)) * 0.5 for _ in range(3))
            mx.eval(xs)
            times = _median_times({"scan": _call(our_scan, xs), "loop": _call(naive_loop, xs)})
            row.append(f"{times['loop'] / times['scan']:.1f}")
        rows.append(row)
    return _table(["shape", *(f"L = {length}" for length in lengths)], rows)


def _growth(lengths: list[int]) -> str:
    rows = []
    for length in lengths:
        arguments = _gate_loop_arguments((1, length, 128))
        function = _gate_loop("scan")
        runs = {"f": _call(function, arguments), "g": _mlx_gradient(function, arguments)}
        times, peaks = _median_times(runs), {name: _peak(run) for name, run in runs.items()}
        rows.append(
            [
                f"{length:,}",
                f"{times['f'] * 1e3:.1f}",
                f"{times['g'] * 1e3:.1f}",
                f"{times['g'] / times['f']:.1f}",
                f"{times['f'] / length * 1e6:.2f}",
                f"{times['g'] / length * 1e6:.2f}",
                f"{peaks['f'] / 2**20:.0f}",
                f"{peaks['g'] / 2**20:.0f}",
                f"{peaks['g'] / arguments[0].nbytes:.1f}",
            ]
        )
    header = ["L", "forward ms", "gradient ms", "ratio", "forward µs/step", "gradient µs/step"]
    header += ["forward peak MB", "gradient peak MB", "gradient peak, planes of [L, D]"]
    return _table(header, rows)


def _measure(
    forward: dict[str, Run], gradient: dict[str, Run]
) -> tuple[list[str], list[list[Any]]]:
    times = _median_times(forward)
    gradient_times = _median_times(gradient)
    reference = next(iter(times.values()))
    reference_gradient = next(iter(gradient_times.values()), None)
    rows = []
    for name, run in forward.items():
        is_mlx = isinstance(run(), mx.array)
        row = [name, f"{times[name] * 1e3:.2f}", f"{times[name] / reference:.2f}"]
        row.append(f"{_peak(run) / 2**20:.0f}" if is_mlx else "-")
        if name in gradient_times and reference_gradient is not None:
            time_ = gradient_times[name]
            row += [f"{time_ * 1e3:.2f}", f"{time_ / reference_gradient:.2f}"]
            row += [f"{time_ / times[name]:.1f}"]
            row += [f"{_peak(gradient[name]) / 2**20:.0f}" if is_mlx else "-"]
        else:
            row += ["-"] * 4
        rows.append(row)
    header = ["", "forward ms", "of ours", "peak MB", "gradient ms", "of ours", "of its forward"]
    return [*header, "peak MB"], rows


def _median_times(runs: dict[str, Run]) -> dict[str, float]:
    """Seconds of each run; they take turns, so that a slow moment of the machine hits all.

    In its turn each runs once before it is timed: compiled, its caches filled, and not charged for
    returning the memory of the one before.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            _finish(run())
            began = time.perf_counter()
            _finish(run())
            samples[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in samples.items()}


def _finish(result: Any) -> None:
    if isinstance(result, mx.array) or (
        isinstance(result, tuple) and result and isinstance(result[0], mx.array)
    ):
        mx.eval(result)


def _peak(run: Run) -> int:
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    _finish(run())
    return mx.get_peak_memory() - before


@contextmanager
def _cache_limit(limit: int | None) -> Iterator[None]:
    if limit is None:
        yield
        return
    previous = mx.set_cache_limit(limit)
    try:
        yield
    finally:
        mx.set_cache_limit(previous)


def _table(header: list[str], rows: list[list[Any]]) -> str:
    cells = [header, ["---"] * len(header), *rows]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )
