"""The scan and the operator in jax and torch: NumPy arrays in, runs out."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlx_gateloop.bench.measure import Candidate, Function
from mlx_gateloop.io.machine import cores

Pair = tuple[Any, Any]  # arrays of jax or torch


def jax_gate_loop(arrays: list[np.ndarray], cotangent: np.ndarray) -> Candidate:
    """The paper's operator, arrays q, k, v, gamma and theta, compiled."""
    import jax
    import jax.numpy as jnp

    def gate_loop(q: Any, k: Any, v: Any, gamma: Any, theta: Any) -> Any:
        size = jax.nn.sigmoid(gamma)
        a = jax.lax.complex(size * jnp.cos(theta), size * jnp.sin(theta))
        return q * jax_states(a, (k * v).astype(a.dtype)).real

    return jax_candidate(gate_loop, arrays, cotangent)


def jax_states(a: Any, x: Any) -> Any:
    """Scan h_n = a_n h_{n-1} + x_n by jax.lax.associative_scan."""
    import jax

    def combine(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(combine, (a, x), axis=1)[1]


def jax_candidate(function: Function, arrays: list[np.ndarray], cotangent: np.ndarray) -> Candidate:
    import jax

    forward = jax.jit(function)
    gradient = jax.jit(lambda dy, *xs: jax.vjp(function, *xs)[1](dy))
    dy, *xs = (jax.numpy.array(array) for array in (cotangent, *arrays))
    return Candidate(
        lambda: jax.block_until_ready(forward(*xs)),
        lambda: jax.block_until_ready(gradient(dy, *xs)),
        is_mlx=False,
    )


def torch_gate_loop(arrays: list[np.ndarray], cotangent: np.ndarray) -> Candidate:
    """The paper's operator on gateloop-transformer's scan; arrays as in `jax_gate_loop`."""
    import torch

    def gate_loop(q: Any, k: Any, v: Any, gamma: Any, theta: Any) -> Any:
        a = torch.polar(gamma.sigmoid(), theta)
        return q * torch_states(a, (k * v).to(a.dtype)).real

    return torch_candidate(gate_loop, arrays, cotangent)


def torch_states(a: Any, x: Any) -> Any:
    """Scan h_n = a_n h_{n-1} + x_n by gateloop-transformer's code."""
    import torch
    from gateloop_transformer.associative_scan import associative_scan

    def combine(left: Pair, right: Pair) -> Pair:
        return left[0] * right[0], torch.addcmul(right[1], right[0], left[1])

    return associative_scan(combine, (a, x))[1]


def fla_gla(arrays: list[np.ndarray], dy: np.ndarray) -> Candidate:
    """GLA's kernels on q, k, v and gamma with heads; their products round float32 to TF32."""
    from fla.ops.gla import chunk_gla
    from torch.nn.functional import logsigmoid

    def gate_loop(q: Any, k: Any, v: Any, gamma: Any) -> Any:
        return chunk_gla(q, k, v, logsigmoid(gamma), scale=1.0)[0]

    return torch_candidate(gate_loop, arrays, dy)


def torch_candidate(
    function: Function, arrays: list[np.ndarray], cotangent: np.ndarray
) -> Candidate:
    import torch

    torch.set_num_threads(cores())
    device = "cuda" if mx.default_device().type == mx.gpu and torch.cuda.is_available() else "cpu"
    leaves = [torch.tensor(array, device=device, requires_grad=True) for array in arrays]
    dy = torch.tensor(cotangent, device=device)

    def wait_for(result: Any) -> Any:
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    def forward() -> Any:
        with torch.no_grad():
            return wait_for(function(*leaves))

    def gradient() -> Any:
        return wait_for(torch.autograd.grad(function(*leaves), leaves, dy))

    return Candidate(forward, gradient, is_mlx=False)
