"""`gateloop bench ops`: the operator with heads, beside other libraries and its bare products."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_gateloop as gl
from mlx_gateloop.bench import chunked_peers
from mlx_gateloop.bench.compare import Comparison, compare
from mlx_gateloop.bench.machine import backends, present
from mlx_gateloop.bench.measure import (
    Contender,
    megabytes,
    mlx_arrays,
    mlx_contender,
    mlx_gradient,
    peak_bytes,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.chunked import CHUNK

PRODUCTS = "bare products, MLX"
JAX, TORCH = "our chunked form, jax", "our chunked form, torch"
JAX_STEPS, TORCH_STEPS = "jax.lax.scan", "a loop of steps, torch"
MAMBA = "mlx-lm's ssm_attn"

# The gradient of a loop keeps the state of every step, in several copies.
STEPS_BYTES = 2 << 30

Shape = tuple[int, int, int, int, int]  # B, L, H, K, V
Contenders = dict[str, Contender]


def measure_heads(report: Report, shapes: list[Shape], memory: list[int]) -> None:
    """Time the operator with heads.

    Args:
        report: Where the tables go.
        shapes: Of the tables; the targets are those of the first.
        memory: Lengths at which the memory of the gradient is measured.
    """
    report.add(
        "## The operator with heads\n\ny = Re(q h), h_n = a_n h_{n-1} + k_n^T v_n, "
        "a = sigmoid(gamma) (real) or sigmoid(gamma) exp(i theta) (complex), one for each key. The "
        "gradient is that of all arrays, given y's, and includes the forward pass. The bare "
        f"products are those of chunks of {CHUNK} steps: of queries and keys, of their scores and "
        "values, of keys and values, and of queries and the carried state. Neither jax nor torch "
        "has the operator: the chunked form is ours in their arrays, compiled by jax, eager in "
        "torch. Loops of steps are left out where the states of all steps take more than "
        f"{STEPS_BYTES >> 30} GiB."
    )
    for shape in shapes:
        for is_complex in (False, True):
            result = compare(contenders(shape, is_complex))
            kind = "complex" if is_complex else "real"
            report.add(f"### {shape} (B, L, H, K, V), {kind}\n\n{result.table}")
            if shape == shapes[0]:
                _targets(report, result, kind)
    report.add(
        "### A real gate for each head\n\nThe form of Mamba-2, whose prefill in mlx-lm computes "
        "the same; its gradient is MLX's.\n\n" + compare(one_gate(shapes[0])).table
    )
    measure_memory(report, shapes[0], memory)


def _targets(report: Report, result: Comparison, kind: str) -> None:
    ours = next(iter(result.forward))
    for name in (JAX, TORCH):
        for what in ("forward", "gradient"):
            over = result.over_ours(name, what)
            report.target(f"heads, {kind}, {what}, {name} over {ours}", over, 1)
    for what, times in (("forward", result.forward), ("gradient", result.gradient)):
        over = times[ours] / times[PRODUCTS]
        report.target(f"heads, {kind}, {what}, over the bare products", over, 2.5, at_least=False)


def contenders(shape: Shape, is_complex: bool) -> Contenders:
    """Our backends, the bare products and the peers, on the same arrays and cotangent."""
    *arrays, dy = _normal(*_shapes(shape, is_complex))
    ours = mlx_arrays(arrays)
    result = {
        f"ours, {backend}": mlx_contender(partial(_operator, backend), ours, mlx_arrays([dy]))
        for backend in backends()
    }
    result[PRODUCTS] = bare_products(shape, is_complex)
    loops = 4 * math.prod(shape) * (1 + is_complex) <= STEPS_BYTES
    if present("jax"):
        result[JAX] = chunked_peers.jax_chunked(arrays, dy)
        if loops:
            result[JAX_STEPS] = chunked_peers.jax_steps(arrays, dy)
    if present("torch"):
        result[TORCH] = chunked_peers.torch_chunked(arrays, dy)
        if loops:
            result[TORCH_STEPS] = chunked_peers.torch_steps(arrays, dy)
    return result


def _shapes(shape: Shape, is_complex: bool) -> list[tuple[int, ...]]:
    """The shapes of q, k, v, the gates and y."""
    *rows, V = shape
    keys, values = tuple(rows), (*rows[:-1], V)
    return [keys, keys, values, *[keys] * (2 if is_complex else 1), values]


def _operator(backend: Any, *arrays: mx.array) -> list[mx.array]:
    q, k, v, *gates = arrays
    return [gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates), backend=backend)[0]]


def bare_products(shape: Shape, is_complex: bool) -> Contender:
    """The matrix products of the chunked form alone, on arrays of their shapes."""
    B, L, H, K, V = shape
    chunks, steps, width = B * H * math.ceil(L / CHUNK), min(L, CHUNK), K * (1 + is_complex)
    shapes = [(chunks, steps, width)] * 2 + [(chunks, steps, V), (chunks, width, V)]

    def products(q: mx.array, k: mx.array, v: mx.array, state: mx.array) -> list[mx.array]:
        transposed = k.swapaxes(-1, -2)
        return [q @ transposed @ v, transposed @ v, q @ state]

    arrays = mlx_arrays(_normal(*shapes))
    cotangents = [mx.random.normal(x.shape) for x in products(*arrays)]
    mx.eval(cotangents)
    return mlx_contender(products, arrays, cotangents)


def one_gate(shape: Shape) -> Contenders:
    """Our backends and mlx-lm's Mamba-2, with log-transitions shared by a head's keys."""
    from mlx_lm.models.ssm import ssm_attn

    B, L, H, K, V = shape
    q, k, v, steps, dy = mlx_arrays(
        _normal((B, L, H, K), (B, L, H, K), (B, L, H, V), (B, L, H), (B, L, H, V))
    )
    zero, skipped = mx.zeros((H,)), mx.zeros((H,))

    def ours(backend: Any, q: mx.array, k: mx.array, v: mx.array, steps: mx.array) -> Any:
        size = mx.logaddexp(steps, 0)[..., None]  # softplus, as ssm_attn has it
        a = gl.Transition.polar(-size)
        return [gl.gate_loop(q, k, size * v, a, backend=backend)[0]]

    def theirs(q: mx.array, k: mx.array, v: mx.array, steps: mx.array) -> Any:
        return [ssm_attn(v, zero, k, q, skipped, steps, zero, time_step_limit=(0, math.inf))[0]]

    functions: dict[str, Callable[..., Any]] = {
        f"ours, {backend}": partial(ours, backend) for backend in backends()
    }
    functions[MAMBA] = theirs
    return {name: mlx_contender(f, [q, k, v, steps], [dy]) for name, f in functions.items()}


def measure_memory(report: Report, shape: Shape, lengths: list[int]) -> None:
    """Measure the memory of the gradient beyond its inputs and y's gradient."""
    rows = []
    for length in lengths:
        sized = (1, length, 1, *shape[3:])
        for is_complex in (False, True):
            *arrays, dy = mlx_arrays(_normal(*_shapes(sized, is_complex)))
            kind = "complex" if is_complex else "real"
            for backend in backends():
                run = mlx_gradient(partial(_operator, backend), arrays, [dy])
                peak, own = peak_bytes(run), sum(x.nbytes for x in (*arrays, dy))
                row = [f"{length:,}", f"ours, {backend}, {kind}", megabytes(peak)]
                rows.append([*row, f"{peak / own:.2f}"])
    report.add(
        f"### Memory of the gradient at (1, L, 1, {shape[3]}, {shape[4]})\n\nBeyond the "
        "arrays and y's gradient."
    )
    report.add(markdown_table(["L", "", "peak MB", "in sizes of all arrays"], rows))


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]
