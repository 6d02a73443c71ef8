"""The style that all pictures share, and the one way to save them."""

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlx_gateloop.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 10  # in matplotlib's cycle; each set of dashes is for as many lines
DASHES = ("-", "--", "-.", ":")
LEGEND_COLUMNS = 3
DOTS_PER_INCH = 120
FAINT = 0.3  # opacity of grid lines


class Line(NamedTuple):
    """The name of a line in legends, and the number of its style."""

    name: str
    number: int


def new_figure(width: float, height: float) -> "Figure":
    """Make an empty matplotlib figure; sizes in inches."""
    from matplotlib.figure import Figure  # without pyplot's global state and display

    return Figure(figsize=(width, height), layout="constrained")


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number in a plot."""
    dashes = DASHES[number // COLOURS % len(DASHES)]
    return {"color": f"C{number % COLOURS}", "linestyle": dashes}


def add_legend(figure: "Figure", source: "Axes | None" = None) -> None:
    """Put one legend above the axes, of all labelled lines or of one axes' alone."""
    entries = () if source is None else source.get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=LEGEND_COLUMNS)


def add_ranked_legend(
    figure: "Figure", axes: "Axes", height: Callable[[Any], float] = itemgetter(-1)
) -> None:
    """Put a legend beside the axes, its names in the order of their lines' heights."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    ranked = sorted(lines, key=lambda line: -height(line.get_ydata()))
    figure.legend(handles=ranked, loc="outside right upper")


def save_png(figure: "Figure", png_path: Path) -> None:
    """Write the picture, whole or not at all."""
    with replacing(png_path) as partial:
        figure.savefig(partial, format="png", dpi=DOTS_PER_INCH)
