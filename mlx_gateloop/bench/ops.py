"""`gateloop bench ops`: the scan and the operator, their growth and memory, arithmetic."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_gateloop as gl
from mlx_gateloop.bench import floors, peers, plots
from mlx_gateloop.bench.arithmetic import measure_pointwise, measure_products
from mlx_gateloop.bench.blelloch import blelloch_scan, hillis_steele_scan, naive_loop
from mlx_gateloop.bench.compare import compare
from mlx_gateloop.bench.heads import measure_heads
from mlx_gateloop.bench.machine import backends, present
from mlx_gateloop.bench.measure import (
    Contender,
    cache_limit,
    median_times,
    megabytes,
    milliseconds,
    mlx_arrays,
    mlx_contender,
    mlx_gradient,
    peak_bytes,
    ratio,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.backends import BACKENDS

PEERS = ("jax", "torch", "gateloop-transformer")
JAX = "jax.lax.associative_scan"
TORCH = "gateloop-transformer's scan (torch)"
C_LOOP = "C loop, one thread"
COPY = "memory copy of as many bytes"

# Enough for the operator's arrays and gradients at (8, 4096, 1024), in each backend.
GPU_BYTES = 24 << 30

Shape = tuple[int, int, int]
Contenders = dict[str, Contender]


def measure(report: Report) -> None:
    quick = report.quick
    if lines := peers.device_lines():
        report.add("\n".join(lines))
    measure_scan(report, (1, 256, 64) if quick else (1, 8192, 624))
    on_gpu = mx.default_device().type == mx.gpu
    full = (8, 4096, 1024) if on_gpu and _gpu_bytes() > GPU_BYTES else (8, 1024, 256)
    measure_gate_loop(report, (2, 64, 64) if quick else full)
    lengths = [256, 512] if quick else [1024 << i for i in range(8)]
    measure_growth(report, "length", "L", lengths, lambda length: (1, length, 128))
    batches = [1, 2] if quick else [1, 2, 4, 8, 16, 32]
    length = 64 if quick else 1024
    measure_growth(report, "batch", "batch", batches, lambda batch: (batch, length, 128))
    measure_memory(report, 1024 if quick else 65536)
    heads = [(1, 2048, 4, 64, 128), (1, 2048, 16, 64, 64), (1, 2048, 4, 256, 512)]
    lengths = [256, 512] if quick else [4096, 65536]
    measure_heads(report, [(1, 128, 2, 8, 16)] if quick else heads, lengths)
    measure_products(report)
    measure_pointwise(report)


def measure_scan(report: Report, shape: Shape) -> None:
    """Time the bare scan, with complex a and x as float32 planes."""
    *planes, dr, di = scan_arrays(shape)
    moved = 6 * planes[0].nbytes  # four planes in, two out
    with cache_limit(report.own_cache):
        contenders = our_scans(planes, (dr, di))
        small_cache = compare(contenders, moved)
    by_gradient = 16 * planes[0].nbytes  # beside that, six read and four written
    report.add(
        f"## The scan\n\nh_n = a_n h_{{n-1}} + x_n at {shape}, a and x complex, zero before the "
        "first step. GB/s count the planes of a, x and h; for the gradient, with its forward pass, "
        "16 planes."
    )
    contenders |= mlx_scans(planes, (dr, di))
    contenders |= peer_scans(planes, (dr, di))
    if loop := floors.c_loop(*planes):
        contenders[C_LOOP] = Contender(loop, is_mlx=False)
    else:
        report.add("- no working C compiler: the C loop is left out")
    contenders[COPY] = floors.device_copy(moved)
    result = compare(contenders, moved, by_gradient, COPY)
    report.add(result.table)
    names = {"forward": result.forward, "gradient": result.gradient}
    draw = partial(plots.bars, xlabel="milliseconds", values=_milliseconds(names))
    report.plot("scan", f"The scan at {shape}, complex", draw)
    report.add("### Ours with MLX's own cache limit\n\n" + small_cache.table)

    ours = next(iter(result.forward))
    report.target(f"scan forward, {JAX} over {ours}", result.over_ours(JAX), 8)
    report.target(f"scan forward, {TORCH} over {ours}", result.over_ours(TORCH), 10)
    over_c = result.over_ours(C_LOOP)
    inverse = 1 / over_c if over_c else None
    report.target(f"scan forward, {ours} over the {C_LOOP}", inverse, 1.5, at_least=False)
    growth = result.gradient[ours] / result.forward[ours]
    report.target(f"scan, gradient over forward of {ours}", growth, 3.5, at_least=False)


def scan_arrays(shape: Shape) -> list[np.ndarray]:
    """Planes of a (|a| below 1), of x and of the cotangent of h."""
    rng = np.random.default_rng(0)
    size, angle = rng.uniform(0, 1, shape), rng.normal(size=shape)
    others = (rng.normal(size=shape) for _ in range(4))
    planes = (size * np.cos(angle), size * np.sin(angle), *others)
    return [plane.astype(np.float32) for plane in planes]


def our_scans(planes: list[np.ndarray], cotangents: tuple[np.ndarray, ...]) -> Contenders:
    arrays, dh = mlx_arrays(planes), mlx_arrays(cotangents)

    def scan(backend: str, ar: mx.array, ai: mx.array, xr: mx.array, xi: mx.array) -> object:
        zero = mx.zeros_like(xr[:, 0])
        return BACKENDS[backend].scan((ar, ai), (xr, xi), (zero, zero))

    return {f"ours, {b}": mlx_contender(partial(scan, b), arrays, dh) for b in backends()}


def mlx_scans(planes: list[np.ndarray], cotangents: tuple[np.ndarray, ...]) -> Contenders:
    """Other scans in MLX operations; their gradients are autodiff's."""
    arrays, dh = mlx_arrays(planes), mlx_arrays(cotangents)

    def of(scan: Callable[..., Any], gradient: bool = True) -> Contender:
        def function(ar: mx.array, ai: mx.array, xr: mx.array, xi: mx.array) -> Any:
            return scan((ar, ai), (xr, xi))

        return mlx_contender(function, arrays, dh if gradient else None)

    return {
        "Blelloch, MLX operations": of(blelloch_scan),
        "Hillis-Steele, MLX operations": of(hillis_steele_scan),
        # Autodiff of L slices would write L arrays of the whole size.
        "naive loop, MLX operations": of(naive_loop, gradient=False),
    }


def peer_scans(planes: list[np.ndarray], cotangents: tuple[np.ndarray, ...]) -> Contenders:
    ar, ai, xr, xi = planes
    arrays = [re + 1j * im for re, im in ((ar, ai), (xr, xi), cotangents)]
    contenders = {}
    if present("jax"):
        contenders[JAX] = peers.jax_scan(*arrays)
    if present("torch") and present("gateloop-transformer"):
        contenders[TORCH] = peers.torch_scan(*arrays)
    return contenders


def measure_gate_loop(report: Report, shape: Shape) -> None:
    """Time the operator, from its projections and gates."""
    contenders = gate_loops(shape)
    plane = 4 * math.prod(shape)
    contenders[COPY] = floors.device_copy(6 * plane)
    result = compare(contenders, 6 * plane, 17 * plane, COPY)
    report.add(
        f"## The operator\n\ny = q Re(h), h_n = a_n h_{{n-1}} + k_n v_n, a = sigmoid(gamma) "
        f"exp(i theta) at {shape}. The gradient is that of all five arrays, given y's, and "
        "includes the forward pass. GB/s count the least that must be moved, six planes forward "
        "(q, k, v, gamma, theta, y) and eleven more for the gradient."
    )
    report.add(result.table)
    times = {"forward": result.forward, "gradient": result.gradient}
    draw = partial(plots.bars, xlabel="milliseconds", values=_milliseconds(times))
    report.plot("operator", f"The operator at {shape}", draw)
    ours = next(iter(contenders))
    what = f"operator forward and backward, {JAX} over {ours}"
    report.target(what, result.over_ours(JAX, "gradient"), 5)
    if mx.default_device().type == mx.gpu:
        on_gpu = {JAX: peers.jax_device() != "cpu", TORCH: peers.torch_device() != "cpu"}
        for peer, kind in itertools.product(on_gpu, ("forward", "gradient")):
            over_ours = result.over_ours(peer, kind) if on_gpu[peer] else None
            report.target(f"operator {kind}, {peer} on the GPU over {ours}", over_ours, 3)
        for kind, share in result.shares.items():
            report.target(f"operator {kind}, share of a copy's GB/s, {ours}", share, 0.7)


def gate_loops(shape: Shape, torch: bool = True) -> Contenders:
    """Our backends and the peers, on the same q, k, v, gamma, theta and cotangent."""
    rng = np.random.default_rng(0)
    *arrays, dy = (rng.normal(size=shape).astype(np.float32) for _ in range(6))
    contenders = {
        f"ours, {backend}": mlx_contender(_gate_loop(backend), mlx_arrays(arrays), mlx_arrays([dy]))
        for backend in backends()
    }
    if present("jax"):
        contenders[JAX] = peers.jax_gate_loop(arrays, dy)
    if torch and present("torch") and present("gateloop-transformer"):
        contenders[TORCH] = peers.torch_gate_loop(arrays, dy)
    return contenders


def _gate_loop(backend: Any) -> Callable[..., list[mx.array]]:
    def function(
        q: mx.array, k: mx.array, v: mx.array, gamma: mx.array, theta: mx.array
    ) -> list[mx.array]:
        y, _ = gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta), backend=backend)
        return [y]

    return function


def measure_growth(
    report: Report, name: str, symbol: str, sizes: list[int], shape_of: Callable[[int], Shape]
) -> None:
    """Time the operator at several values of one size, with the others fixed."""
    series: dict[str, dict[int, float]] = {}
    rows = []
    for size in sizes:
        contenders = gate_loops(shape_of(size), torch=False)
        forward = median_times({n: c.forward for n, c in contenders.items()})
        gradient = median_times({n: c.gradient for n, c in contenders.items() if c.gradient})
        row = [f"{size:,}"]
        for kind, times in (("forward", forward), ("gradient", gradient)):
            ours = next(iter(times.values()))
            for contender, seconds in times.items():
                series.setdefault(f"{contender}, {kind}", {})[size] = seconds * 1e3
                row.append(f"{milliseconds(seconds)} ({ratio(seconds, ours)})")
        rows.append(row)
    shape = str(shape_of(sizes[0])).replace(str(sizes[0]), symbol, 1)
    title = f"Growth with the {name}, the operator at {shape}"
    report.add(f"## {title}\n\nMilliseconds.")
    report.add(markdown_table([symbol, *series], rows))
    draw = partial(plots.lines, xlabel=symbol, ylabel="milliseconds", series=series)
    report.plot(name, title, draw)


def measure_memory(report: Report, length: int) -> None:
    """Measure the memory of the operator's gradient beyond its inputs."""
    rows, planes = [], []
    rng = np.random.default_rng(0)
    shape = (1, length, 128)
    *arrays, dy = (mx.array(rng.normal(size=shape).astype(np.float32)) for _ in range(6))
    mx.eval(arrays, dy)
    for backend in backends():
        peak = peak_bytes(mlx_gradient(_gate_loop(backend), arrays, [dy]))
        planes.append(peak / dy.nbytes)
        rows.append([f"ours, {backend}", megabytes(peak), f"{planes[-1]:.2f}"])
    report.add(
        f"## Memory of the operator's gradient at {shape}\n\nBeyond the inputs and y's gradient; "
        "the five gradients are among it."
    )
    report.add(markdown_table(["", "peak MB", "float32 planes of [L, D]"], rows))
    what = f"memory of the gradient at L = {length:,} in planes of [L, D], {rows[0][0]}"
    report.target(what, planes[0], 6, at_least=False)


def _gpu_bytes() -> int:
    return int(mx.device_info().get("memory_size", 0))


def _milliseconds(times: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {kind: {n: s * 1e3 for n, s in group.items()} for kind, group in times.items()}
