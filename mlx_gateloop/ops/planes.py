"""Complex numbers as tuples of real float32 arrays: `(real,)` or `(real, imaginary)`.

Without an imaginary part it is zero and costs nothing. MLX's complex64 is not used for
arithmetic: on the CPU it is about thirty times slower, and several of its gradients are wrong.
"""

import mlx.core as mx

Planes = tuple[mx.array, ...]
Outputs = tuple[mx.array, Planes]  # y, and the last state


def split(x: mx.array) -> Planes:
    """Split a real or complex64 array into its real and, if complex, imaginary part."""
    return (mx.real(x), mx.imag(x)) if x.dtype == mx.complex64 else (x.astype(mx.float32),)


def join(x: Planes) -> mx.array:
    """Join real and imaginary part into an array: complex64 if there are both."""
    return x[0] if len(x) == 1 else x[0] + 1j * x[1]


def unstack(x: mx.array) -> Planes:
    return tuple(x[:, i] for i in range(x.shape[1]))


def stack(x: Planes) -> mx.array:
    return mx.stack(list(x), 1)


def multiply(a: Planes, b: Planes) -> Planes:
    if len(a) == 1:
        return tuple(a[0] * plane for plane in b)
    if len(b) == 1:
        return tuple(plane * b[0] for plane in a)
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def add(a: Planes, b: Planes) -> Planes:
    """Add; b may lack an imaginary part that a has."""
    return tuple(p + q for p, q in zip(a, b, strict=False)) + a[len(b) :]


def without_inf(v: mx.array, axis: int) -> tuple[mx.array, mx.array]:
    """Return v with 0 for infinities, and NaN from them on: a masked product would spread them."""
    finite = mx.isfinite(mx.stop_gradient(v))
    return mx.where(finite, v, 0), mx.cumsum(mx.where(finite, 0.0, mx.nan), axis=axis)


def conjugate(a: Planes) -> Planes:
    return a if len(a) == 1 else (a[0], -a[1])


def widen(a: Planes, count: int) -> Planes:
    """Append imaginary parts of zero until `a` has `count` arrays."""
    return a + tuple(mx.zeros_like(a[0]) for _ in range(count - len(a)))
