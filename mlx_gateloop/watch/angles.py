"""The planes of a transition as a trace stores them."""

import numpy as np

from mlx_gateloop.ops.transition import Form


def rate_and_phase(
    form: Form, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Convert a `Transition`'s planes of this form to -log|a| and arg a in (-pi, pi]."""
    if form == "cartesian":
        with np.errstate(divide="ignore"):  # a = 0
            return -np.log(np.hypot(first, second)), np.arctan2(second, first)
    rate, phase = -first, wrapped(second)
    if form == "sigmoid":  # -log sigmoid, without overflow or cancellation
        rate = np.maximum(rate, 0) + np.log1p(np.exp(-np.abs(first)))
    return rate, phase


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Bring angles into (-pi, pi]."""
    turned: np.ndarray = angle - 2 * np.pi * np.ceil(angle / (2 * np.pi) - 0.5)
    return turned
