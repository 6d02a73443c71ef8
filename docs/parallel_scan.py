"""The picture of a log-step scan in docs/operator.md: `python docs/parallel_scan.py`."""

from pathlib import Path

from matplotlib.axes import Axes

from mlx_gateloop.plots.style import new_figure, save_png

REACHES = 1, 2, 4  # the distance that each step combines over
ELEMENTS = 8
PICTURE = Path(__file__).parent / "images" / "parallel-scan.png"


def main() -> None:
    rows = combinations()
    figure = new_figure(1.25 * ELEMENTS + 1.2, 1.15 * len(rows) + 0.2)
    axes = figure.add_subplot()
    names = ["inputs", *(f"step {n}:\n{r} back" for n, r in enumerate(REACHES, 1))]
    for row, (name, summaries) in enumerate(zip(names, rows, strict=True)):
        axes.text(-0.75, -row, name, ha="right", va="center")
        for element, (first, partner) in enumerate(summaries):
            _draw_summary(axes, row, element, first)
            if row:
                _draw_arrow(axes, row, element, element, "0.75" if partner is None else "0.35")
            if partner is not None:
                _draw_arrow(axes, row, partner, element, "C0")
    axes.set(xlim=(-1.6, ELEMENTS - 0.4), ylim=(-len(rows) + 0.7, 0.3))
    axes.set_axis_off()
    axes.set_title(
        f"The scan of {ELEMENTS} elements in {len(rows) - 1} steps: "
        "$(a_1, x_1) \\bullet (a_2, x_2) = (a_1 a_2,\\; a_2 x_1 + x_2)$",
        fontsize=11,
    )
    save_png(figure, PICTURE)


def _draw_summary(axes: Axes, row: int, element: int, first: int) -> None:
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


def _draw_arrow(axes: Axes, row: int, source: int, element: int, colour: str) -> None:
    axes.annotate(
        "",
        (element, -row + 0.22),
        (source, -row + 1 - 0.22),
        arrowprops={"arrowstyle": "->", "color": colour, "shrinkA": 0, "shrinkB": 0},
        zorder=1,
    )


def combinations() -> list[list[tuple[int, int | None]]]:
    """Return for each step, and before the first, the first input that each element spans.

    Beside it is the element that was combined with it in this step, if any.
    """
    rows: list[list[tuple[int, int | None]]] = [[(n, None) for n in range(ELEMENTS)]]
    for reach in REACHES:
        pairs = [(n, n - reach if rows[-1][n][0] else None) for n in range(ELEMENTS)]
        rows.append([(rows[-1][n if m is None else m][0], m) for n, m in pairs])
    return rows


if __name__ == "__main__":
    main()
