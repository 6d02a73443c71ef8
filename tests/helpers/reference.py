"""The recurrence and its gradient as float64 NumPy loops, with random cases to feed them."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest

from mlx_gateloop.ops.cpu import why_missing

missing = why_missing()
needs_native = pytest.mark.skipif(missing is not None, reason=f"no C++ extension: {missing}")


@dataclass
class Case:
    """Arrays `[B, L, H, K or V]`; a, h0 and dh `[B, H, K, V]` are complex128 or float64."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    a: np.ndarray
    h0: np.ndarray
    mask: np.ndarray
    dy: np.ndarray
    dh: np.ndarray = field(repr=False)
    reverse: bool = False

    @property
    def max_headed(self):
        return self.q.shape[-1] == self.v.shape[-1] == 1

    def steps(self):
        length = self.q.shape[1]
        return range(length - 1, -1, -1) if self.reverse else range(length)


def random_case(
    seed, length, *, batch=2, heads=(5, 1, 1), is_complex=True, one_gate_per_head=False,
    resets=0.1, masked=0.0, reverse=False, dtype=mx.float32,
):  # fmt: skip
    """A case whose values are exactly representable in `dtype` (a: in float32)."""
    rng = np.random.default_rng(seed)
    H, K, V = heads
    gates = (batch, length, H, 1 if one_gate_per_head else K)
    a = rng.uniform(0, 1, gates)
    a[rng.uniform(size=gates) < resets] = 0
    if is_complex:
        a = (a * np.exp(2j * rng.normal(size=gates))).astype(np.complex64).astype(np.complex128)

    def normal():
        x = rng.normal(size=(batch, H, K, V, 2)).astype(np.float32).astype(np.float64) @ [1, 1j]
        return x if is_complex else x.real

    def values(*shape):
        rounded = mx.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
        return np.array(rounded.astype(mx.float32)).astype(np.float64)

    h0 = normal()
    return Case(
        q=values(batch, length, H, K), k=values(batch, length, H, K), v=values(batch, length, H, V),
        a=a if is_complex else a.astype(np.float32).astype(np.float64), h0=h0,
        mask=rng.uniform(size=(batch, length)) >= masked, dy=values(batch, length, H, V),
        dh=normal(), reverse=reverse,
    )  # fmt: skip


def forward(case):
    """y `[B, L, H, V]`, the last state, and the state before each step."""
    h = case.h0
    y = np.zeros(case.v.shape)
    before = np.zeros((*case.q.shape, case.v.shape[-1]), h.dtype)
    for n in case.steps():
        before[:, n] = h
        stepped = case.a[:, n, ..., None] * h + case.k[:, n, ..., None] * case.v[:, n, :, None]
        live = case.mask[:, n, None, None, None]
        h = np.where(live, stepped, h)
        y[:, n] = (live * case.q[:, n, ..., None] * h).sum(-2).real
    return y, h, before


def gradients(case):
    """The gradient of sum(y dy) + sum(Re h Re dh + Im h Im dh), by the adjoint recurrence."""
    _, _, before = forward(case)
    result = {name: np.zeros_like(getattr(case, name)) for name in ("q", "k", "v", "a")}
    G = case.dh
    for n in reversed(case.steps()):
        live = case.mask[:, n, None, None, None]
        a, k, v = case.a[:, n, ..., None], case.k[:, n, ..., None], case.v[:, n, :, None]
        dy = case.dy[:, n, :, None]
        h = a * before[:, n] + k * v
        g = G + case.q[:, n, ..., None] * dy
        result["q"][:, n] = (live * dy * h.real).sum(-1)
        result["k"][:, n] = (live * g.real * v).sum(-1)
        result["v"][:, n] = (live * g.real * k).sum(-2)
        da = (live * g * before[:, n].conj()).sum(-1)
        da = da if np.iscomplexobj(case.a) else da.real
        result["a"][:, n] = da.sum(-1, keepdims=True) if case.a.shape[-1] == 1 else da
        G = np.where(live, a.conj() * g, G)
    return {**result, "h0": G}


def softmax_attention(q, k, v, a, mask=None):
    """Softmax over m <= n of q_n k_m a_{m+1} ... a_n; q the last n; NaN where `mask` hides all."""
    y = np.full((*q.shape[:3], v.shape[-1]), np.nan)
    for row, n in enumerate(range(k.shape[2] - q.shape[2], k.shape[2])):
        # from m = n on to 0, turned
        after = np.concatenate([np.ones_like(a[:, :, :1]), a[:, :, n:0:-1]], 2).cumprod(2)
        after = after[:, :, ::-1].real
        scores = (q[:, :, row : row + 1] * k[:, :, : n + 1] * after).sum(-1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights *= 1 if mask is None else mask[:, :, row, : n + 1]
        with np.errstate(invalid="ignore"):
            weights /= weights.sum(-1, keepdims=True)
        y[:, :, row] = np.einsum("bhm,bhmv->bhv", weights, v[:, :, : n + 1])
    return y


def scan(a, x, h=0, reverse=False):
    """The states h_n = a_n h_{n-1} + x_n in complex128."""
    states = np.zeros(x.shape, np.complex128)
    for n in range(x.shape[1])[:: -1 if reverse else 1]:
        h = states[:, n] = a[:, n] * h + x[:, n]
    return states


def to_planes(x):
    """A state `[B, ...]` as float32 planes: `[B, 2, ...]` if it is complex, else `[B, 1, ...]`."""
    return mx.array(np.stack([x.real, x.imag] if np.iscomplexobj(x) else [x], 1).astype(np.float32))


def inputs(case, dtype=mx.float32):
    """q, k and v of a type, a and h0, as the operator takes them."""
    arrays = [mx.array(x.astype(np.float32)).astype(dtype) for x in (case.q, case.k, case.v)]
    arrays.append(mx.array(case.a.astype(np.complex64 if np.iscomplexobj(case.a) else np.float32)))
    h0 = to_planes(case.h0)
    if case.max_headed:
        arrays, h0 = [x[..., 0] for x in arrays], h0[..., 0, 0]
    return [*arrays, h0]


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def as_numpy(x):
    return np.array(x.astype(mx.float32) if x.dtype != mx.complex64 else x)


def error(got, want, least=1e-30):
    """The largest difference, relative to the largest value, which counts as `least` or more."""
    got = as_numpy(got) if isinstance(got, mx.array) else got
    if want.size == 0:
        return 0.0 if got.size == 0 else np.inf
    return float(np.abs(got.reshape(want.shape) - want).max() / max(np.abs(want).max(), least))
