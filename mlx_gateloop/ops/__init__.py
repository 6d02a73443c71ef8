"""The GateLoop operator: shapes are checked here, once, and the mode is chosen here.

`gate_loop`, `convolve`, `linear_scan` and `gate_loop_softmax` are public; the other functions take
what they get on trust. Inside, everything is float32 planes `[B, L, H, size]`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import mlx.core as mx

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.attention import attention, softmax_attention
from mlx_gateloop.ops.checks import (
    check_choice,
    check_gate_loop,
    check_linear_scan,
    choose_backend,
)
from mlx_gateloop.ops.chunked import chunked_gate_loop
from mlx_gateloop.ops.convolution import convolve
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.native import recurrence as extension
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.recurrent import recurrent
from mlx_gateloop.ops.scan import linear_recurrence
from mlx_gateloop.ops.transition import Transition

__all__ = ["Transition", "convolve", "gate_loop", "gate_loop_softmax", "linear_scan"]

Mode = Literal["auto", "recurrent", "scan", "attention"]
Backend = Literal["auto", "ops", "native", "metal", "cuda"]
Result = tuple[mx.array, mx.array]


def gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array | Transition,
    h0: mx.array | None = None,
    *,
    mask: mx.array | None = None,
    reverse: bool = False,
    mode: Mode = "auto",
    backend: Backend = "auto",
) -> Result:
    """Gated linear recurrence whose state transition is controlled by the data.

    h_n = a_n h_{n-1} + k_n^T v_n,   y_n = Re(q_n h_n)      (paper, eq. 5 and 6; Re: appendix C)

    Args:
        q: Queries, `[B, L, D]` (max-headed: one channel, one head) or `[B, L, H, K]`.
        k: Keys, of q's shape.
        v: Values, `[B, L, D]` or `[B, L, H, V]`.
        a: Transitions, `[B, L, D]`, or `[B, L, H, K]` or `[B, L, H, 1]`: a complex64 or real array,
            or a `Transition`. A real one keeps the state real and takes half the work.
        h0: State before the first step, float32 `[B, 2, D]` or `[B, 2, H, K, V]`: real plane, then
            imaginary plane. None is zero.
        mask: Bool `[B, L]`; where False the step is the identity (a = 1, k v = 0) and y is 0.
        reverse: Run from the last step to the first.
        mode: "recurrent" step by step, O(L) (the specification); "scan" in O(log L) dependent
            passes (step by step where one step fills a CPU: see `scan.py`); "attention", O(L^2);
            "auto" takes the step for L = 1, else the scan.
        backend: What computes the scan: "ops" is plain MLX, "native" the C++ extension for CPUs,
            "metal" and "cuda" kernels for Apple's and NVIDIA's GPUs; these three fuse the gates of
            the max-headed form. "auto" takes the one for MLX's default device, if there is one, and
            with a warning "ops" where a kernel does not compile. Kernels have no `mx.vmap`, no
            `mx.jvp` and no second derivatives.

    Returns:
        y in v's shape and dtype, and the state after the last step, float32, in h0's form.
        Inside everything is float32, whatever the inputs are. Both are differentiable. Shapeless
        `mx.compile` takes the max-headed "native" form; for the others shapes must be fixed, as
        MLX's own slices don't know it.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: A backend that this machine or version does not have.
    """
    a = a if isinstance(a, Transition) else Transition.of(a)
    check_gate_loop(q, k, v, a, h0, mask)
    check_choice("mode", mode, get_args(Mode))
    chosen = choose_backend(backend, get_args(Backend))
    fused = FUSED.get(chosen) if q.ndim == 3 and q.size > 0 else None
    if mode == "auto":  # only on a CPU is the scan of one step as fast as the step
        step_by_step = q.shape[1] == 1 and not (fused and chosen == "native")
        mode = "recurrent" if step_by_step else "scan"
    if mode == "scan" and fused:
        if backend == "auto":
            fused = gpu.or_else(fused, _plain_gate_loop)
        y, last = fused(q, k, v, a, h0, mask, reverse)
        return y.astype(v.dtype), last

    shape, dtype = v.shape, v.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    gates = a.planes()
    if mask is not None:
        q, k, v = (mx.where(_beside(mask, x), x, 0) for x in (q, k, v))
        gates = tuple(mx.where(_beside(mask, p), p, 1 - i) for i, p in enumerate(gates))
    real, imaginary = _initial_state(q, v, h0)
    state = (real, imaginary)[: len(gates)]
    if q.size == 0 or v.size == 0:
        y, h = mx.zeros_like(v), state
    elif mode == "scan" and q.ndim == 3:
        y, h = _elementwise_scan(q, k, v, gates, state, reverse)
    else:
        form = _FORMS[mode]
        if mode == "scan":
            form = partial(form, scan=_scan(chosen, backend))
        y, h = _with_heads(form, q, k, v, gates, state, reverse)
    if len(h) == 1:  # a real transition scales the imaginary plane, which nothing is added to
        h = h if h0 is None else (*h, imaginary * _product(gates[0], imaginary))
    y = y.reshape(shape)
    if mask is not None:  # q is 0 there, but 0 times a state that overflowed is not
        y = mx.where(_beside(mask, y), y, 0)
    return y.astype(dtype), mx.stack(list(pl.widen(h, 2)), 1)


def linear_scan(
    a: mx.array,
    x: mx.array,
    h0: mx.array | None = None,
    *,
    reverse: bool = False,
    backend: Backend = "auto",
) -> mx.array:
    """The scan of a linear recurrence along axis 1, h_n = a_n h_{n-1} + x_n.

    Args:
        a: Transitions, a real or complex64 array `[B, L, ...]`.
        x: Inputs, real or complex64, of the same shape. Shapeless `mx.compile` takes the "native"
            form if it is three-dimensional.
        h0: State before the first step, `[B, ...]`; None is zero.
        reverse: Run from the last step to the first.
        backend: As in `gate_loop`.

    Returns:
        All states, `[B, L, ...]`: complex64 if any argument is, else of x's dtype. The arithmetic
        is float32.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: A backend that this machine or version does not have.
    """
    check_linear_scan(a, x, h0)
    scan = _scan(choose_backend(backend, get_args(Backend)), backend)
    gates, inputs = pl.split(a), pl.split(x)
    start = () if h0 is None else pl.split(h0)
    count = max(map(len, (gates, inputs, start)))
    if x.size == 0:
        return x if count == 1 else x.astype(mx.complex64)
    if len(gates) == 1:  # the state is as wide as the inputs: a complex h0 needs complex inputs
        inputs = pl.widen(inputs, count)
    h = pl.join(scan(gates, inputs, pl.widen(start, count) if start else (), reverse))
    return h if count == 2 else h.astype(x.dtype)


def gate_loop_softmax(q: mx.array, k: mx.array, v: mx.array, a: mx.array | Transition) -> mx.array:
    """Softmax attention with data-controlled relative positions (paper, section 3.4).

    y_n = sum_m softmax_m(Re(q_n k_m a_{m+1} ... a_n)) v_m over m <= n

    Args:
        q: Queries, as in `gate_loop`, as are k, v and a.
        k: Keys.
        v: Values.
        a: Transitions.

    Returns:
        y in v's shape and dtype. Time and memory grow with L^2.

    Raises:
        ValueError: A shape or dtype that does not fit, naming the argument.
    """
    a = a if isinstance(a, Transition) else Transition.of(a)
    check_gate_loop(q, k, v, a, None, None)
    if q.size == 0 or v.size == 0:
        return v
    shape, dtype = v.shape, v.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    y = softmax_attention(*_as_heads(q, k, v, a.planes()))
    return y.reshape(shape).astype(dtype)


def _elementwise_scan(
    q: mx.array, k: mx.array, v: mx.array, a: Planes, h0: Planes, reverse: bool
) -> tuple[mx.array, Planes]:
    """The max-headed form, where every channel is its own recurrence; all arrays `[B, L, D]`."""
    h = linear_recurrence(a, (k * v,), h0, reverse)
    return q * h[0], tuple(plane[:, 0 if reverse else -1] for plane in h)


def _with_heads(
    form: Callable[..., tuple[mx.array, Planes]],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Planes,
    h0: Planes,
    reverse: bool,
) -> tuple[mx.array, Planes]:
    """Run a form that is written for heads from the first step to the last."""
    q, k, v, a = _as_heads(q, k, v, a)
    shape = h0[0].shape
    state = tuple(s.reshape(*q.shape[:1], *q.shape[2:], v.shape[-1]) for s in h0)
    if reverse:
        q, k, v = (x[:, ::-1] for x in (q, k, v))
        a = tuple(plane[:, ::-1] for plane in a)
    y, h = form(q, k, v, a, state)
    return (y[:, ::-1] if reverse else y), tuple(plane.reshape(shape) for plane in h)


def _as_heads(
    q: mx.array, k: mx.array, v: mx.array, a: Planes
) -> tuple[mx.array, mx.array, mx.array, Planes]:
    if q.ndim == 3:  # [B, L, D] -> [B, L, H = D, 1]
        q, k, v = (x[..., None] for x in (q, k, v))
        a = tuple(plane[..., None] for plane in a)
    return q, k, v, a


_FORMS: dict[str, Callable[..., tuple[mx.array, Planes]]] = {
    "recurrent": recurrent,
    "scan": chunked_gate_loop,
    "attention": attention,
}
SCANS = {
    "ops": linear_recurrence,
    "native": extension.linear_recurrence,
    "metal": gpu.on("metal", gpu.linear_recurrence),
    "cuda": gpu.on("cuda", gpu.linear_recurrence),
}
# The max-headed operator, gates and all.
FUSED = {
    "native": extension.gate_loop,
    "metal": gpu.on("metal", gpu.gate_loop),
    "cuda": gpu.on("cuda", gpu.gate_loop),
}


def _scan(chosen: str, asked: str) -> Callable[..., Planes]:
    scan = SCANS[chosen]
    return gpu.or_else(scan, linear_recurrence) if asked == "auto" else scan


def _plain_gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
) -> Result:
    return gate_loop(q, k, v, a, h0, mask=mask, reverse=reverse, mode="scan", backend="ops")


def _initial_state(k: mx.array, v: mx.array, h0: mx.array | None) -> Planes:
    if h0 is None:
        shape = (k.shape[0], *k.shape[2:], *(v.shape[3:]))
        return mx.zeros(shape), mx.zeros(shape)
    return h0[:, 0].astype(mx.float32), h0[:, 1].astype(mx.float32)


def _product(a: mx.array, state: mx.array) -> mx.array:
    """The product of a real transition over all steps, beside a state's plane."""
    product = a.prod(axis=1)
    return product if product.ndim == state.ndim else product[..., None]


def _beside(mask: mx.array, x: mx.array) -> mx.array:
    return mask.reshape(*mask.shape, *[1] * (x.ndim - 2))
