"""The GateLoop operator: arguments are checked here, once, and the mode is chosen here."""

from typing import get_args

import mlx.core as mx

from mlx_gateloop.ops import plain
from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.attention import softmax_attention
from mlx_gateloop.ops.backends import Backend, BackendName, run_on
from mlx_gateloop.ops.checks import check_choice, check_gate_loop, check_linear_scan
from mlx_gateloop.ops.plain import Mode
from mlx_gateloop.ops.transition import Transition

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
        v: Values, `[B, L, D]` or `[B, L, H, V]`; each of q, k and v may have any float dtype.
        a: Transitions, `[B, L, D]`, or `[B, L, H, K]` or `[B, L, H, 1]`: a complex64 or real array,
            or a `Transition`. A real one keeps the state real and takes half the work.
        h0: State before the first step, float32 `[B, P, D]` or `[B, P, H, K, V]`: the real part,
            and if P = 2 the imaginary part, which real a ignore, since y does not depend on it.
            P = 1 means an imaginary part of 0, and None a state of 0.
        mask: Bool `[B, L]`; where False the step is the identity (a = 1, k v = 0) and y is 0.
        reverse: Run from the last step to the first.
        mode: "recurrent", step by step in O(L) (the specification); "scan", O(log L) dependent
            passes (step by step where one step fills a CPU: see `scan.py`); "attention", O(L^2);
            "auto", a single step for L = 1 unless the backend fuses it, else the scan.
        backend: The implementation of the scan: "mlx", plain MLX; "cpu", the C++ extension, with
            fused gates; "metal" and "cuda", kernels for Apple's and NVIDIA's GPUs, with fused
            gates, but no `mx.vmap`, `mx.jvp` or second derivatives. "auto" takes the one for
            MLX's default device; without it, or with a warning if a GPU kernel does not compile,
            "mlx".

    Returns:
        y in v's shape and dtype, and the state after the last step, float32, in h0's form, with
        P = 2 for complex and P = 1 for real a. All arithmetic is float32; both are differentiable.
        With |a| > 1 products of up to 64 transitions may overflow, where one step after another
        would not.
        Shapeless `mx.compile` works for "cpu" only, and with real a for h0 with P = 1, as MLX's
        slices need fixed shapes; an array that the compiled function captures, such as a loss's
        weight, must fit: MLX's own operations do not check it.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: This machine or version lacks the backend.

    Examples:
        >>> q, k, v, gamma, theta = (mx.random.normal((1, 100, 8)) for _ in range(5))
        >>> y, h = gate_loop(q, k, v, Transition.sigmoid(gamma, theta))
        >>> y.shape, h.shape
        ((1, 100, 8), (1, 2, 8))
    """
    gates = Transition.of(a)
    check_gate_loop(q, k, v, gates, h0, mask)
    check_choice("mode", mode, get_args(Mode))
    if h0 is not None:
        h0 = h0.astype(mx.float32)
        if h0.shape[1] > 1 + gates.is_complex:
            h0 = h0[:, :1]
        elif h0.shape[1] < 1 + gates.is_complex:
            h0 = mx.concatenate([h0, mx.zeros_like(h0)], 1)

    def run(chosen: Backend) -> Result:
        if mode not in ("auto", "scan") or q.size == 0 or v.size == 0:
            return plain.gate_loop(q, k, v, gates, h0, mask, reverse, mode)
        y, last = chosen.operator(q, k, v, gates, h0, mask, reverse)
        return y.astype(v.dtype), last

    return run_on(backend, run)


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
            "cpu" backend with three axes.
        h0: State before the first step, real or complex64 `[B, ...]`; None is zero.
        reverse: Run from the last step to the first.
        backend: As in `gate_loop`.

    Returns:
        All states, `[B, L, ...]`: complex64 if any argument is, else of x's dtype. The arithmetic
        is float32.

    Raises:
        ValueError: A shape, dtype or choice that does not fit, naming the argument.
        RuntimeError: This machine or version lacks the backend.

    Examples:
        >>> linear_scan(mx.full((1, 4), 0.5), mx.ones((1, 4)))
        array([[1, 1.5, 1.75, 1.875]], dtype=float32)
    """
    check_linear_scan(a, x, h0)
    gates, inputs = pl.split(a), pl.split(x)
    start = () if h0 is None else pl.split(h0)
    count = max(map(len, (gates, inputs, start)))

    def run(chosen: Backend) -> mx.array:
        if x.size == 0:
            return x if count == 1 else x.astype(mx.complex64)
        # With real a the state is as wide as the inputs: a complex h0 needs complex inputs.
        wide = pl.widen(inputs, count) if len(gates) == 1 else inputs
        h = pl.join(chosen.scan(gates, wide, pl.widen(start, count) if start else (), reverse))
        return h if count == 2 else h.astype(x.dtype)

    return run_on(backend, run)


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

    Examples:
        >>> q, k, v, gamma = (mx.random.normal((1, 10, 8)) for _ in range(4))
        >>> gate_loop_softmax(q, k, v, Transition.sigmoid(gamma)).shape
        (1, 10, 8)
    """
    a = Transition.of(a)
    check_gate_loop(q, k, v, a, None, None)
    if v.size == 0:
        return v
    shape, dtype = v.shape, v.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    return softmax_attention(*plain.as_heads(q, k, v, a.planes())).reshape(shape).astype(dtype)
