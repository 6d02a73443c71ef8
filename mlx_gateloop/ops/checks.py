"""Checks of the operator's arguments, made once, where they enter."""

import mlx.core as mx

from mlx_gateloop.ops.transition import Transition, check_type, kind_of


def check_gate_loop(
    q: mx.array, k: mx.array, v: mx.array, a: Transition, h0: mx.array | None, mask: mx.array | None
) -> None:
    _check_projections(q, k, v)
    _check_transition(a, q.shape, q.ndim == 4)
    if h0 is not None:
        check_type("h0", h0)
        planes = h0.shape[1] if h0.shape[1:2] in ((1,), (2,)) else 1 + a.is_complex
        size = (q.shape[0], planes, *q.shape[2:], *v.shape[3:])
        _check_shape("h0", h0, size, "batch, real and imaginary part, sizes of the state")
    if mask is not None:
        if not isinstance(mask, mx.array) or mask.dtype != mx.bool_:
            raise ValueError(f"mask: expected a bool array, got {kind_of(mask)}")
        _check_shape("mask", mask, q.shape[:2], "[B, L]")


def check_convolve(q: mx.array, k: mx.array, v: mx.array, a: Transition) -> None:
    _check_projections(q, k, v)
    _check_transition(a, q.shape[2:], q.ndim == 4)


def check_linear_scan(a: mx.array, x: mx.array, h0: mx.array | None) -> None:
    check_type("a", a, may_be_complex=True)
    check_type("x", x, may_be_complex=True)
    if x.ndim < 2:
        raise ValueError(f"x: expected [B, L, ...], got shape {x.shape}")
    _check_shape("a", a, x.shape, "x's shape")
    if h0 is not None:
        check_type("h0", h0, may_be_complex=True)
        _check_shape("h0", h0, (x.shape[0], *x.shape[2:]), "x's shape without axis 1")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def _check_projections(q: mx.array, k: mx.array, v: mx.array) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_type(name, x)
    if q.ndim not in (3, 4):
        raise ValueError(f"q: expected [B, L, D] or [B, L, H, K], got shape {q.shape}")
    _check_shape("k", k, q.shape, "q's shape")
    if q.ndim == 3:
        _check_shape("v", v, q.shape, "q's shape")
    elif v.ndim != 4 or v.shape[:3] != q.shape[:3]:
        raise ValueError(f"v: expected [B, L, H, V] = {_with(q.shape, 'V')}, got {v.shape}")


def _check_transition(a: Transition, shape: tuple[int, ...], may_share: bool) -> None:
    """Check a's shape; with `may_share` the channels of a head may share one transition."""
    if not may_share:
        _check_shape("a", a, shape, "q's shape" if len(shape) == 3 else "one for each channel")
    elif a.shape not in (shape, (*shape[:-1], 1)):
        raise ValueError(f"a: expected {shape} or {_with(shape, 1)}, got {a.shape}")


def _check_shape(name: str, x: mx.array | Transition, shape: tuple[int, ...], meaning: str) -> None:
    if x.shape != shape:
        raise ValueError(f"{name}: expected shape {shape} ({meaning}), got {x.shape}")


def _with(shape: tuple[int, ...], last: int | str) -> str:
    return f"({', '.join(map(str, (*shape[:-1], last)))})"
