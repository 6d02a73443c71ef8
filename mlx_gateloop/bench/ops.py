"""`gateloop bench ops`: the scan and the operator on each backend."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_gateloop as gl
from mlx_gateloop.bench.measure import (
    Candidate,
    Others,
    median_times,
    megabytes,
    milliseconds,
    mlx_arrays,
    mlx_candidate,
    peak_bytes,
    ratio,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.backends import BACKENDS

FASTEST_FIRST = ("metal", "cuda", "cpu", "mlx")
MAMBA = "mlx-lm's ssm_attn"

Shape = tuple[int, ...]
Candidates = dict[str, Candidate]


def measure(report: Report) -> None:
    quick = report.quick
    scan = (1, 256, 64) if quick else (1, 8192, 624)
    report.add(
        f"## The scan\n\nh_n = a_n h_{{n-1}} + x_n at {scan}, a and x complex.\n\n"
        + table(scans(scan, report.others))
    )
    operator = (2, 64, 64) if quick else (8, 1024, 256)
    report.add(
        "## The operator\n\ny = q Re(h), h_n = a_n h_{n-1} + k_n v_n, a = sigmoid(gamma) "
        f"exp(i theta) at {operator}. The gradient is that of all five arrays.\n\n"
        + table(operators(operator, report.others))
    )
    heads = (1, 128, 2, 8, 16) if quick else (1, 2048, 4, 64, 128)
    for kind in ("real", "complex"):
        report.add(
            f"## The operator with heads, {kind}\n\nB, L, H, K, V = {heads}, a gate for each "
            "key.\n\n" + table(with_heads(heads, kind, report.others))
        )
    report.add(
        "## The operator with a real gate for each head\n\nThe form of Mamba-2.\n\n"
        + table(one_gate(heads))
    )


def table(candidates: Mapping[str, Candidate]) -> str:
    """Time candidates, ours first."""
    forward = median_times({name: c.forward for name, c in candidates.items()})
    gradient = median_times({name: c.gradient for name, c in candidates.items()})
    ours = next(iter(candidates))
    rows = []
    for name, candidate in candidates.items():
        row = [name]
        for times, run in ((forward, candidate.forward), (gradient, candidate.gradient)):
            row.append(f"{milliseconds(times[name])} ({ratio(times[name], times[ours])})")
            row.append(megabytes(peak_bytes(run)) if candidate.is_mlx else "-")
        rows.append(row)
    return markdown_table(["", "forward ms", "peak MB", "gradient ms", "peak MB"], rows)


def backends() -> list[str]:
    """The available backends of the scan, in the likely order of speed."""
    return [name for name in FASTEST_FIRST if not BACKENDS[name].why_missing()]


def scans(shape: Shape, others: Others) -> Candidates:
    """Our backends and others, on the same a, x and cotangent."""
    planes, cotangents = scan_arrays(shape)

    def scan(backend: str, ar: mx.array, ai: mx.array, xr: mx.array, xi: mx.array) -> object:
        return BACKENDS[backend].scan((ar, ai), (xr, xi), ())

    a, x, dy = (re + 1j * im for re, im in (planes[:2], planes[2:], cotangents))
    return _ours(scan, planes, cotangents) | others("scan", [a, x], dy)


def scan_arrays(shape: Shape) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Real and imaginary parts of a (|a| below 1) and x, and those of the cotangent of h."""
    rng = np.random.default_rng(0)
    size, angle = rng.uniform(0, 1, shape), rng.normal(size=shape)
    others = (rng.normal(size=shape) for _ in range(4))
    planes = [p.astype(np.float32) for p in (size * np.cos(angle), size * np.sin(angle), *others)]
    return planes[:4], planes[4:]


def operators(shape: Shape, others: Others) -> Candidates:
    """Our backends and others, on the same q, k, v, gamma, theta and cotangent."""
    *arrays, dy = _normal(*[shape] * 6)
    return _ours(_operator, arrays, [dy]) | others("operator", arrays, dy)


def with_heads(shape: Shape, kind: str, others: Others) -> Candidates:
    """Our backends and others, on the same q, k, v, gamma, if complex theta, and cotangent."""
    *rows, V = shape
    keys, values = tuple(rows), (*rows[:-1], V)
    *arrays, dy = _normal(keys, keys, values, *[keys] * (1 + (kind == "complex")), values)
    return _ours(_operator, arrays, [dy]) | others(f"{kind} heads", arrays, dy)


def one_gate(shape: Shape) -> Candidates:
    """Our backends and mlx-lm's Mamba-2, with log-transitions shared by a head's keys."""
    from mlx_lm.models.ssm import ssm_attn

    B, L, H, K, V = shape
    *arrays, dy = _normal((B, L, H, K), (B, L, H, K), (B, L, H, V), (B, L, H), (B, L, H, V))
    zero = mx.zeros((H,))

    def ours(backend: Any, q: mx.array, k: mx.array, v: mx.array, steps: mx.array) -> Any:
        size = mx.logaddexp(steps, 0)[..., None]  # softplus, as ssm_attn has it
        return [gl.gate_loop(q, k, size * v, gl.Transition.polar(-size), backend=backend)[0]]

    def theirs(q: mx.array, k: mx.array, v: mx.array, steps: mx.array) -> Any:
        return [ssm_attn(v, zero, k, q, zero, steps, zero, time_step_limit=(0, math.inf))[0]]

    mamba = mlx_candidate(theirs, mlx_arrays(arrays), mlx_arrays([dy]))
    return {**_ours(ours, arrays, [dy]), MAMBA: mamba}


def _operator(backend: Any, *arrays: mx.array) -> list[mx.array]:
    q, k, v, *gates = arrays
    return [gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates), backend=backend)[0]]


def _ours(
    function: Callable[..., Any], arrays: list[np.ndarray], cotangents: list[np.ndarray]
) -> Candidates:
    inputs, dy = mlx_arrays(arrays), mlx_arrays(cotangents)
    return {f"ours, {b}": mlx_candidate(partial(function, b), inputs, dy) for b in backends()}


def _normal(*shapes: Shape) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]
