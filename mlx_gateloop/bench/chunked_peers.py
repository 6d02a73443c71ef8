"""The operator with heads in jax and torch: the chunked form, and step by step.

Neither library has the operator, so both forms are ours: the chunked one is `ops.chunked`, on
planes as there, without padding, its chunks' states carried by `lax.scan` or a loop; the steps are
the recurrence, on complex arrays where the gates are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_gateloop.bench.measure import Contender
from mlx_gateloop.bench.peers import jax_contender, torch_contender
from mlx_gateloop.ops.chunked import CHUNK
from mlx_gateloop.ops.planes import multiply

Array = Any  # of jax or torch
Planes = tuple[Array, ...]


def jax_chunked(arrays: list[np.ndarray], cotangent: np.ndarray) -> Contender:
    """Arrays q, k, v, gamma and, for complex gates, theta; compiled."""
    import jax
    import jax.numpy as jnp

    def starts(total: Planes, added: Planes) -> Planes:
        def step(h: Planes, chunk: tuple[Planes, Planes]) -> tuple[Planes, Planes]:
            a, x = chunk
            return tuple(p + y for p, y in zip(multiply(a, h), x, strict=True)), h

        inputs = tuple(tuple(jnp.moveaxis(p, 1, 0) for p in planes) for planes in (total, added))
        zero = tuple(jnp.zeros_like(p[:, 0]) for p in added)
        _, before = jax.lax.scan(step, zero, inputs)
        return tuple(jnp.moveaxis(p, 0, 1) for p in before)

    def operator(q: Array, k: Array, v: Array, *gates: Array) -> Array:
        size = jax.nn.sigmoid(gates[0])
        a = (size,) if len(gates) == 1 else (size * jnp.cos(gates[1]), size * jnp.sin(gates[1]))
        return _chunked(jnp, starts, q, k, v, a)

    return jax_contender(operator, arrays, cotangent)


def jax_steps(arrays: list[np.ndarray], cotangent: np.ndarray) -> Contender:
    """The recurrence by `jax.lax.scan`, compiled; arrays as in `jax_chunked`."""
    import jax
    import jax.numpy as jnp

    def operator(q: Array, k: Array, v: Array, *gates: Array) -> Array:
        a = jax.nn.sigmoid(gates[0])
        if len(gates) == 2:
            a = jax.lax.complex(a * jnp.cos(gates[1]), a * jnp.sin(gates[1]))

        def step(h: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
            q, k, v, a = at
            h = a[..., None] * h + k[..., None] * v[..., None, :]
            return h, jnp.einsum("bhk,bhkv->bhv", q, h.real)

        zero = jnp.zeros((*q.shape[:1], *q.shape[2:], v.shape[-1]), a.dtype)
        _, y = jax.lax.scan(step, zero, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, a)))
        return jnp.moveaxis(y, 0, 1)

    return jax_contender(operator, arrays, cotangent)


def torch_chunked(arrays: list[np.ndarray], cotangent: np.ndarray) -> Contender:
    """Arrays as in `jax_chunked`."""
    import torch

    def starts(total: Planes, added: Planes) -> Planes:
        h = tuple(torch.zeros_like(p[:, 0]) for p in added)
        before = []
        for n in range(added[0].shape[1]):
            before.append(h)
            decayed = multiply(tuple(p[:, n] for p in total), h)
            h = tuple(p + x[:, n] for p, x in zip(decayed, added, strict=True))
        return tuple(torch.stack(planes, 1) for planes in zip(*before, strict=True))

    def operator(q: Array, k: Array, v: Array, *gates: Array) -> Array:
        size = gates[0].sigmoid()
        a = (size,) if len(gates) == 1 else (size * gates[1].cos(), size * gates[1].sin())
        return _chunked(torch, starts, q, k, v, a)

    return torch_contender(operator, arrays, cotangent)


def torch_steps(arrays: list[np.ndarray], cotangent: np.ndarray) -> Contender:
    """The recurrence by a Python loop; arrays as in `jax_chunked`."""
    import torch

    def operator(q: Array, k: Array, v: Array, *gates: Array) -> Array:
        a = gates[0].sigmoid() if len(gates) == 1 else torch.polar(gates[0].sigmoid(), gates[1])
        h = torch.zeros((), dtype=a.dtype)
        outputs = []
        for n in range(q.shape[1]):
            h = a[:, n, ..., None] * h + k[:, n, ..., None] * v[:, n, :, None]
            outputs.append((q[:, n, :, None] @ h.real).squeeze(-2))
        return torch.stack(outputs, 1)

    return torch_contender(operator, arrays, cotangent)


def _chunked(
    xp: Any, starts: Callable[[Planes, Planes], Planes], q: Array, k: Array, v: Array, a: Planes
) -> Array:
    """`ops.chunked.chunked_gate_loop` with the arrays of `xp`; `starts` carries the states."""
    B, L, H, V = v.shape
    chunk = min(CHUNK, L)

    def chunks(x: Array) -> Array:  # [B, L, H, size] -> [B, chunks, H, chunk, size]
        return xp.swapaxes(x.reshape(B, L // chunk, chunk, H, x.shape[-1]), 2, 3)

    def halves(x: Array, half: int) -> tuple[Array, Array]:
        x = x.reshape(*x.shape[:-2], -1, 2, half, x.shape[-1])
        return x[..., 0, :, :], x[..., 1, :, :]

    def whole(first: Array, second: Array) -> Array:
        x = xp.concatenate([first, second], axis=-2)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    def real_product(a: Planes, b: Planes) -> Array:
        if len(a) == 1:
            return a[0] @ b[0]
        return xp.concatenate([a[0], -a[1]], axis=-1) @ xp.concatenate(list(b), axis=-2)

    q, k, v = chunks(q), chunks(k), chunks(v)
    prefix = tuple(map(chunks, a))
    suffix = tuple(xp.ones_like(p) * (1 - i) for i, p in enumerate(prefix))
    y = (q * k).sum(-1, keepdims=True) * v
    half = 1
    while half < chunk:
        (_, q2), (k1, _), (v1, _) = (halves(x, half) for x in (q, k, v))
        prefix1, prefix2 = zip(*(halves(p, half) for p in prefix), strict=True)
        suffix1, suffix2 = zip(*(halves(p, half) for p in suffix), strict=True)
        keys = tuple(xp.swapaxes(p * k1, -1, -2) for p in suffix1)
        scores = real_product(tuple(p * q2 for p in prefix2), keys)
        y1, y2 = halves(y, half)
        y = whole(y1, y2 + scores @ v1)
        through1 = tuple(p[..., -1:, :] for p in prefix1)
        through2 = tuple(p[..., -1:, :] for p in prefix2)
        prefix = tuple(map(whole, prefix1, multiply(through1, prefix2)))
        suffix = tuple(map(whole, multiply(suffix1, through2), suffix2))
        half *= 2
    added = tuple(xp.swapaxes(p * k, -1, -2) @ v for p in suffix)
    total = tuple(p[..., -1, :, None] for p in prefix)
    before = starts(total, added)
    y = y + real_product(tuple(p * q for p in prefix), before)
    return xp.swapaxes(y, 2, 3).reshape(B, L, H, V)
