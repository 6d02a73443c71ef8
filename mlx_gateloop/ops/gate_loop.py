"""The GateLoop operator: arguments are checked here, once, and the mode is chosen here.

    gate_loop -> checks -> backend and mode -> a fused kernel, or float32 planes in one of the modes

The modules behind it rely on these checks.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import mlx.core as mx

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.attention import attention, softmax_attention
from mlx_gateloop.ops.backends import Backend, BackendName, run_on
from mlx_gateloop.ops.checks import check_choice, check_gate_loop, check_linear_scan
from mlx_gateloop.ops.chunked import chunked_gate_loop
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.recurrent import recurrent
from mlx_gateloop.ops.transition import Transition

Mode = Literal["auto", "recurrent", "scan", "attention"]
MODES = get_args(Mode)
Scan = Callable[..., Planes]
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
    backend: BackendName = "auto",
) -> Result:
    """Compute a gated linear recurrence whose state transition is controlled by the data.

    h_n = a_n h_{n-1} + k_n^T v_n,   y_n = Re(q_n h_n)      (paper, eq. 7 and 8; Re: appendix C)

    Args:
        q: Queries, `[B, L, D]` (max-headed: one channel, one head) or `[B, L, H, K]`.
        k: Keys, of q's shape.
        v: Values, `[B, L, D]` or `[B, L, H, V]`.
        a: Transitions, `[B, L, D]`, or `[B, L, H, K]` or `[B, L, H, 1]`: a complex64 or real array,
            or a `Transition`. A real one keeps the state real and takes half the work.
        h0: State before the first step, float32 `[B, P, D]` or `[B, P, H, K, V]`: the real plane,
            and if P = 2 the imaginary plane. That is 0 if P = 1, and ignored with real a, since y
            does not depend on it. None is zero.
        mask: Bool `[B, L]`; where False the step is the identity (a = 1, k v = 0) and y is 0.
        reverse: Run from the last step to the first.
        mode: "recurrent", step by step in O(L) (the specification); "scan", O(log L) dependent
            passes (step by step where one step fills a CPU: see `scan.py`); "attention", O(L^2);
            "auto", a single step for L = 1 unless the backend fuses it, else the scan.
        backend: The implementation of the scan: "ops", plain MLX; "native", the C++ extension for
            CPUs, with fused gates; "metal" and "cuda", kernels for Apple's and NVIDIA's GPUs, with
            fused gates, but no `mx.vmap`, `mx.jvp` or second derivatives. "auto" takes the one for
            MLX's default device; without it, or with a warning if a GPU kernel does not compile,
            "ops".

    Returns:
        y in v's shape and dtype, and the state after the last step, float32, in h0's form, with
        P = 2 for complex and P = 1 for real a. All arithmetic is float32; both are differentiable.
        Shapeless `mx.compile` works for "native" only, and with real a for h0 with P = 1, as MLX's
        slices need fixed shapes; an array that the compiled function captures, such as a loss's
        weight, must fit: MLX's own operations do not check it.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: This machine or version lacks the backend.
    """
    a = a if isinstance(a, Transition) else Transition.of(a)
    check_gate_loop(q, k, v, a, h0, mask)
    check_choice("mode", mode, MODES)
    return run_on(backend, partial(_gate_loop, q, k, v, a, h0, mask, reverse, mode))


def linear_scan(
    a: mx.array,
    x: mx.array,
    h0: mx.array | None = None,
    *,
    reverse: bool = False,
    backend: BackendName = "auto",
) -> mx.array:
    """Scan a linear recurrence along axis 1, h_n = a_n h_{n-1} + x_n.

    Args:
        a: Transitions, a real or complex64 array `[B, L, ...]`.
        x: Inputs, real or complex64, of the same shape. Shapeless `mx.compile` works for the
            "native" backend with three axes.
        h0: State before the first step, `[B, ...]`; None is zero.
        reverse: Run from the last step to the first.
        backend: As in `gate_loop`.

    Returns:
        All states, `[B, L, ...]`: complex64 if any argument is, else of x's dtype. The arithmetic
        is float32.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: This machine or version lacks the backend.
    """
    check_linear_scan(a, x, h0)
    return run_on(backend, partial(_linear_scan, a, x, h0, reverse))


def gate_loop_softmax(q: mx.array, k: mx.array, v: mx.array, a: mx.array | Transition) -> mx.array:
    """Compute softmax attention with data-controlled relative positions (paper, section 3.4).

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


def _gate_loop(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Transition,
    h0: mx.array | None,
    mask: mx.array | None,
    reverse: bool,
    mode: Mode,
    backend: Backend,
) -> Result:
    planes = 1 + a.is_complex
    if h0 is not None:
        h0 = _with_planes(h0.astype(mx.float32), planes)
    fused = backend.fused if q.size > 0 and v.size > 0 else None
    if mode == "auto":  # one step of a fused scan is one launch
        mode = "recurrent" if q.shape[1] == 1 and not fused else "scan"
    if fused and mode == "scan":
        y, last = fused(q, k, v, a, h0, mask, reverse)
        return y.astype(v.dtype), last

    shape, dtype = v.shape, v.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    gates = _gates(a, mask)
    if mask is not None:
        q, k, v = (_where(mask, x) for x in (q, k, v))
    if h0 is None:
        h0 = mx.zeros((q.shape[0], planes, *q.shape[2:], *v.shape[3:]))
    state = tuple(h0[:, i] for i in range(planes))
    y, h = _in_planes(q, k, v, gates, state, reverse, mode, backend.scan)
    y = y.reshape(shape)
    if mask is not None:  # q is 0 there, but 0 times an overflowed state is not
        y = _where(mask, y)
    return y.astype(dtype), mx.stack(list(h), 1)


def _in_planes(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: Planes,
    h0: Planes,
    reverse: bool,
    mode: Mode,
    scan: Scan,
) -> tuple[mx.array, Planes]:
    """Run a mode on float32 arrays; returns y and the planes of the last state."""
    if q.size == 0 or v.size == 0:
        return mx.zeros_like(v), h0
    if mode == "scan" and q.ndim == 3:  # every channel is a recurrence of its own
        h = scan(a, (k * v,), h0, reverse)
        return q * h[0], tuple(plane[:, 0 if reverse else -1] for plane in h)
    state = h0[0].shape
    q, k, v, a = _as_heads(q, k, v, a)
    h0 = tuple(s.reshape(*q.shape[:1], *q.shape[2:], v.shape[-1]) for s in h0)
    if reverse:
        q, k, v = (x[:, ::-1] for x in (q, k, v))
        a = tuple(plane[:, ::-1] for plane in a)
    if mode == "scan":
        y, h = chunked_gate_loop(q, k, v, a, h0)
    else:
        y, h = (recurrent if mode == "recurrent" else attention)(q, k, v, a, h0)
    return (y[:, ::-1] if reverse else y), tuple(plane.reshape(state) for plane in h)


def _as_heads(
    q: mx.array, k: mx.array, v: mx.array, a: Planes
) -> tuple[mx.array, mx.array, mx.array, Planes]:
    if q.ndim == 3:  # [B, L, D] -> [B, L, H = D, 1]
        q, k, v = (x[..., None] for x in (q, k, v))
        a = tuple(plane[..., None] for plane in a)
    return q, k, v, a


def _linear_scan(
    a: mx.array, x: mx.array, h0: mx.array | None, reverse: bool, backend: Backend
) -> mx.array:
    gates, inputs = pl.split(a), pl.split(x)
    start = () if h0 is None else pl.split(h0)
    count = max(map(len, (gates, inputs, start)))
    if x.size == 0:
        return x if count == 1 else x.astype(mx.complex64)
    if len(gates) == 1:  # the state is as wide as the inputs: a complex h0 needs complex inputs
        inputs = pl.widen(inputs, count)
    h = pl.join(backend.scan(gates, inputs, pl.widen(start, count) if start else (), reverse))
    return h if count == 2 else h.astype(x.dtype)


def _with_planes(h0: mx.array, count: int) -> mx.array:
    """Return h0 with the planes of a: real gates need no imaginary one, and a missing one is 0."""
    if h0.shape[1] == count:
        return h0
    return h0[:, :1] if count == 1 else mx.concatenate([h0, mx.zeros_like(h0)], 1)


def _gates(a: Transition, mask: mx.array | None) -> Planes:
    """Return the transition's planes, 1 where the mask is False."""
    if mask is None:
        return a.planes()
    # What they are computed from is masked too: a NaN there times their gradient, 0, would be NaN.
    second = None if a.second is None else _where(mask, a.second)
    planes = Transition(a.form, _where(mask, a.first), second).planes()
    return tuple(_where(mask, plane, 1 - i) for i, plane in enumerate(planes))


def _where(mask: mx.array, x: mx.array, otherwise: int = 0) -> mx.array:
    """Return x where the mask `[B, L]` is True."""
    return mx.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, otherwise)
