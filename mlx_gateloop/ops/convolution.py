"""Constant transitions as a convolution with their powers (paper, eq. 10)."""

import mlx.core as mx

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.checks import check_convolve
from mlx_gateloop.ops.plain import as_heads
from mlx_gateloop.ops.planes import Planes, multiply
from mlx_gateloop.ops.transition import Transition


def convolve(
    q: mx.array, k: mx.array, v: mx.array, a: mx.array | Transition
) -> tuple[mx.array, mx.array]:
    """Compute `gate_loop` with one transition for all steps, by FFT in O(L log L).

    y_n = Re(q_n sum_m a^(n-m) k_m^T v_m) over m <= n

    Args:
        q: Queries, as in `gate_loop`, as are k and v.
        k: Keys.
        v: Values.
        a: Transition without batch and time, `[D]`, or `[H, K]` or `[H, 1]`: a complex64 or real
            array, or a `Transition`.

    Returns:
        y in v's shape and dtype, and the state after the last step, float32, in `gate_loop`'s form.
        An FFT's error is relative to the largest output of a channel.

    Raises:
        ValueError: A shape or dtype that does not fit, naming the argument.

    Examples:
        >>> q, k, v = (mx.random.normal((1, 100, 8)) for _ in range(3))
        >>> y, h = convolve(q, k, v, mx.full((8,), 0.9))
        >>> y.shape, h.shape
        ((1, 100, 8), (1, 1, 8))
    """
    a = Transition.of(a)
    check_convolve(q, k, v, a)
    shape, dtype = v.shape, v.dtype
    state = (q.shape[0], 1 + a.is_complex, *q.shape[2:], *v.shape[3:])
    if q.size == 0 or v.size == 0:
        return mx.zeros_like(v), mx.zeros(state)
    gates = tuple(mx.broadcast_to(plane, q.shape[2:]) for plane in a.planes())
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    q, k, v, gates = as_heads(q, k, v, gates)
    length = q.shape[1]
    filters = powers(gates, length)
    size = 1 << (2 * length - 1).bit_length()  # long enough that nothing wraps around
    # complex64 only here: it is the type of MLX's FFTs. Only the real part of the state is read, so
    # the filter is real.
    spectrum = mx.fft.rfft(k[..., None] * v[..., None, :], size, axis=1)
    spectrum = spectrum * mx.fft.rfft(filters[0][..., None], size, axis=0)
    y = (q[..., None] * mx.fft.irfft(spectrum, size, axis=1)[:, :length]).sum(-2)
    last = tuple(mx.einsum("lhk,blhk,blhv->bhkv", plane[::-1], k, v) for plane in filters)
    return y.reshape(shape).astype(dtype), pl.stack(last).reshape(state)


def powers(a: Planes, length: int) -> Planes:
    """Return a^0 ... a^(length - 1) along a new first axis, by doubling; exact at a = 0."""
    result = pl.widen((mx.ones((1, *a[0].shape)),), len(a))
    while result[0].shape[0] < length:
        later = multiply(tuple(plane[None] for plane in a), result)
        result = tuple(mx.concatenate([*pair]) for pair in zip(result, later, strict=True))
        a = multiply(a, a)
    return tuple(plane[:length] for plane in result)
