"""The state transition a = |a| exp(i arg a), stored in the form in which it was given."""

import math
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from mlx_gateloop.ops import planes as pl
from mlx_gateloop.ops.planes import Planes

Form = Literal["sigmoid", "polar", "cartesian"]
FORMS: dict[Form, int] = {"sigmoid": 0, "polar": 1, "cartesian": 2}  # their numbers in the kernels
IDENTITY: dict[Form, float] = {"sigmoid": math.inf, "polar": 0, "cartesian": 1}  # `first` of a = 1
RESET: dict[Form, float] = {"sigmoid": -math.inf, "polar": -math.inf, "cartesian": 0}  # of a = 0


@dataclass(frozen=True, eq=False)
class Transition:
    """State transitions in a form that kernels can fuse; build them with the methods below.

    `first` is gamma, log|a| or the real part, and `second` is theta, arg a or the imaginary part,
    according to `form`. `second` is None for a real transition, which takes half the work.

    Examples:
        >>> Transition.polar(mx.array([0.0]), mx.array([0.0])).planes()
        (array([1], dtype=float32), array([0], dtype=float32))
    """

    form: Form
    first: mx.array
    second: mx.array | None = None

    @staticmethod
    def sigmoid(gamma: mx.array, theta: mx.array | None = None) -> "Transition":
        """Build the paper's transition (section 4).

        a = sigmoid(gamma) exp(i theta)

        Args:
            gamma: Magnitude before the activation, a real array.
            theta: Phase in radians, of gamma's shape; None for a real transition.

        Raises:
            ValueError: Complex arrays, or shapes that differ.
        """
        return Transition("sigmoid", *_real_pair("gamma", gamma, "theta", theta))

    @staticmethod
    def polar(log_magnitude: mx.array, phase: mx.array | None = None) -> "Transition":
        """Build a = exp(log_magnitude + i phase); a log magnitude of -inf is an exact reset, a = 0.

        Args:
            log_magnitude: Natural logarithm of |a|, a real array.
            phase: arg a in radians, of the same shape; None for a real transition.

        Raises:
            ValueError: Complex arrays, or shapes that differ.
        """
        return Transition("polar", *_real_pair("log_magnitude", log_magnitude, "phase", phase))

    @staticmethod
    def of(array: "mx.array | Transition") -> "Transition":
        """Build a transition from its values, complex64 or real; return a `Transition` as it is.

        Raises:
            ValueError: Not an array of floats or of complex64.
        """
        if isinstance(array, Transition):
            return array
        check_type("a", array, may_be_complex=True)
        return Transition("cartesian", *pl.split(array))

    def reset(self, starts: mx.array) -> "Transition":
        """Return the transition with an exact a = 0 where `starts`, bool `[B, L]`, is True."""
        second = self.second
        is_start = starts.reshape(*starts.shape, *[1] * (len(self.shape) - 2))
        first = mx.where(is_start, RESET[self.form], self.first)
        if second is not None and self.form == "cartesian":
            second = mx.where(is_start, 0, second)
        return Transition(self.form, first, second)

    def masked(self, mask: mx.array) -> "Transition":
        """Return the transition with an exact a = 1 where `mask`, bool `[B, L]`, is False."""
        live = mask.reshape(*mask.shape, *[1] * (len(self.shape) - 2))
        second = None if self.second is None else mx.where(live, self.second, 0)
        return Transition(self.form, mx.where(live, self.first, IDENTITY[self.form]), second)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.first.shape

    @property
    def is_complex(self) -> bool:
        return self.second is not None

    def planes(self) -> Planes:
        """Return the real and, if complex, imaginary part: float32, of the transition's shape."""
        first = self.first.astype(mx.float32)
        second = None if self.second is None else self.second.astype(mx.float32)
        if self.form == "cartesian":
            return (first,) if second is None else (first, second)
        magnitude = _sigmoid(first) if self.form == "sigmoid" else mx.exp(first)
        if second is None:
            return (magnitude,)
        return magnitude * mx.cos(second), magnitude * mx.sin(second)

    def logarithm(self) -> Planes:
        """Return log |a| and, if complex, arg a: float32, of the transition's shape."""
        first = self.first.astype(mx.float32)
        second = None if self.second is None else self.second.astype(mx.float32)
        if self.form == "sigmoid":
            first = -mx.logaddexp(-first, 0)
        elif self.form == "cartesian":
            imaginary = mx.zeros_like(first) if second is None else second
            # A negative number has a phase too.
            second = mx.arctan2(imaginary, first)
            first = log_magnitude(first, imaginary)
        return (first,) if second is None else (first, second)


def log_magnitude(real: mx.array, imaginary: mx.array) -> mx.array:
    """Compute log |a| without underflow of squares."""
    x, y = mx.abs(real), mx.abs(imaginary)
    large, small = mx.maximum(x, y), mx.minimum(x, y)
    return mx.log(large) + 0.5 * mx.log1p((small / mx.where(large == 0, 1, large)) ** 2)


@mx.compile
def _sigmoid(x: mx.array) -> mx.array:
    # 1 / (1 + exp(-x)) loses digits near 1, where memory lasts longest. Not mx.abs: its gradient is
    # 0 at 0, where that of the sigmoid is 1/4.
    e = mx.exp(mx.where(x < 0, x, -x))
    return mx.where(x < 0, e / (1 + e), 1 - e / (1 + e))


def _real_pair(
    name: str, value: mx.array, other_name: str, other: mx.array | None
) -> tuple[mx.array, mx.array | None]:
    check_type(name, value)
    if other is not None:
        check_type(other_name, other)
        if other.shape != value.shape:
            expected = f"{name}'s shape {value.shape}"
            raise ValueError(f"{other_name}: expected {expected}, got {other.shape}")
    return value, other


def check_type(name: str, x: object, may_be_complex: bool = False) -> None:
    kind = mx.inexact if may_be_complex else mx.floating
    if not isinstance(x, mx.array) or not mx.issubdtype(x.dtype, kind):
        expected = "floating-point or complex64" if may_be_complex else "real floating-point"
        raise ValueError(f"{name}: expected a {expected} array, got {kind_of(x)}")


def kind_of(x: object) -> str:
    return f"dtype {x.dtype}" if isinstance(x, mx.array) else type(x).__name__
