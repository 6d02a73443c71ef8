"""Pictures of the method: the steps of the parallel scan, and amplitude activations."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mlx_gateloop.ops import Transition, gate_loop
from mlx_gateloop.ops.planes import Planes
from mlx_gateloop.ops.scan import doubled, reaches
from mlx_gateloop.plots.style import add_grid, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ELEMENTS = 8  # of the scan that is drawn


def parallel_scan(png_path: Path, elements: int = ELEMENTS) -> None:
    """Draw the pairs that each doubling step of the scan combines."""
    rows = combinations(elements)
    figure = new_figure(1.25 * elements + 1.2, 1.15 * len(rows) + 0.2)
    axes = figure.add_subplot()
    names = ["inputs", *(f"step {n}:\n{r} back" for n, r in enumerate(reaches(elements), 1))]
    for row, (name, summaries) in enumerate(zip(names, rows, strict=True)):
        axes.text(-0.75, -row, name, ha="right", va="center")
        for element, (first, partner) in enumerate(summaries):
            _draw_summary(axes, row, element, first)
            if row:
                _draw_arrow(axes, row, element, element, "0.75" if partner is None else "0.35")
            if partner is not None:
                _draw_arrow(axes, row, partner, element, "C0")
    axes.set(xlim=(-1.6, elements - 0.4), ylim=(-len(rows) + 0.7, 0.3))
    axes.set_axis_off()
    axes.set_title(
        f"The scan of {elements} elements in {len(rows) - 1} steps: "
        "$(a_1, x_1) \\bullet (a_2, x_2) = (a_1 a_2,\\; a_2 x_1 + x_2)$",
        fontsize=11,
    )
    save_png(figure, png_path)


def _draw_summary(axes: "Axes", row: int, element: int, first: int) -> None:
    span = f"{first + 1}" if first == element else f"{first + 1}\u2013{element + 1}"
    is_complete = first == 0
    axes.text(
        element,
        -row,
        f"$h_{{{element + 1}}}$\n{span}" if is_complete else f"$a, x$\n{span}",
        ha="center",
        va="center",
        fontsize=10,
        bbox={
            "boxstyle": "round,pad=0.35",
            "facecolor": "#cfe8cf" if is_complete else "white",
            "edgecolor": "#2f6f3e" if is_complete else "0.4",
        },
        zorder=2,
    )


def _draw_arrow(axes: "Axes", row: int, source: int, element: int, colour: str) -> None:
    axes.annotate(
        "",
        (element, -row + 0.22),
        (source, -row + 1 - 0.22),
        arrowprops={"arrowstyle": "->", "color": colour, "shrinkA": 0, "shrinkB": 0},
        zorder=1,
    )


def combinations(elements: int) -> list[list[tuple[int, int | None]]]:
    """Find the span of each element's summary after each doubling step, from the scan itself.

    The input of element n is the n-th unit vector and transitions are 1, so that each state shows
    which inputs it contains.

    Returns:
        For the inputs and after each step, per element: the first input in its span (the last is
        its own), and the element it was combined with in this step, if any.
    """
    a: Planes = (mx.ones((1, elements, elements)),)
    x: Planes = (mx.eye(elements)[None],)
    held = np.array(x[0][0]) > 0
    rows: list[list[tuple[int, int | None]]] = [[(n, None) for n in range(elements)]]
    for reach in reaches(elements):
        a, x = doubled(a, x, reach, reverse=False)
        before, held = held, np.array(x[0][0]) > 0
        row: list[tuple[int, int | None]] = []
        for n in range(elements):
            gained = held[n] & ~before[n]
            partner = int((before == gained).all(1).argmax()) if gained.any() else None
            row.append((int(held[n].argmax()), partner))
        rows.append(row)
    return rows


def amplitude_activations(png_path: Path) -> None:
    """Draw the magnitude of the transition over its pre-activation (paper, section 4).

    The sigmoid is the operator's own. The stable exponential exp(-exp(-x)) of the LRU is drawn as
    it is, and shifted to 1/2 at 0 as in the paper.
    """
    x = np.linspace(-6, 6, 241, dtype=np.float32)
    exponential = np.exp(-np.exp(-x))
    centred = np.exp(-np.exp(-(x - math.log(math.log(2)))))
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot(xlabel="pre-activation", ylabel="magnitude |a|")
    axes.plot(x, _sigmoid(x), label="sigmoid (GateLoop)")
    axes.plot(x, centred, label="stable exponential (LRU), centred")
    axes.plot(x, exponential, "--", color="C1", alpha=0.5, label="stable exponential")
    axes.axvline(0, color="0.8", linewidth=1, zorder=0)
    axes.axhline(0.5, color="0.8", linewidth=1, zorder=0)
    axes.set(xlim=(-6, 6), ylim=(-0.02, 1.02))
    add_grid(axes)
    axes.legend(loc="lower right")
    save_png(figure, png_path)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Compute |a| with the operator: one step from a state of 1 without input."""
    nothing = mx.zeros((1, 1, len(x)))
    gates = Transition.sigmoid(mx.array(x)[None, None])
    _, state = gate_loop(nothing, nothing, nothing, gates, mx.ones((1, 1, len(x))))
    return np.array(state[0, 0])
