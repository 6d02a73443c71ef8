"""The pictures beside the tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_gateloop.bench.measure import three_digits

Series = Mapping[str, Mapping[int, float]]


def _figure(height: float) -> Any:
    # The Figure API leaves pyplot's global state and the display alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def lines(path: Path, title: str, xlabel: str, ylabel: str, series: Series) -> None:
    """Curves over powers of two, both axes logarithmic.

    Args:
        path: The PNG.
        title: Over it.
        xlabel: Of the sizes.
        ylabel: Of the values.
        series: By "contender, kind": the value at each size. A contender has a colour, and its
            gradient is dashed.
    """
    figure = _figure(4.5)
    axes = figure.add_subplot(title=title, xlabel=xlabel, ylabel=ylabel)
    for label, points in series.items():
        contender, _, kind = label.rpartition(", ")
        colour = _colour(contender, series)
        style = "--" if kind == "gradient" else "-"
        axes.plot(list(points), list(points.values()), style, marker="o", color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    ticks = sorted({size for points in series.values() for size in points})
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


def _colour(contender: str, series: Series) -> str:
    names = list(dict.fromkeys(label.rpartition(", ")[0] for label in series))
    return f"C{names.index(contender)}"


def bars(path: Path, title: str, xlabel: str, values: Mapping[str, Mapping[str, float]]) -> None:
    """Groups of horizontal bars on a logarithmic axis, each with its value.

    Args:
        path: The PNG.
        title: Over it.
        xlabel: Of the values.
        values: By group (colour), then by contender.
    """
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    figure = _figure(1.5 + 0.3 * len(names) * len(values))
    axes = figure.add_subplot(title=title, xlabel=xlabel, xscale="log")
    height = 0.8 / len(values)
    for i, (group, of_group) in enumerate(values.items()):
        places = [names.index(name) + (i - (len(values) - 1) / 2) * height for name in of_group]
        drawn = axes.barh(places, list(of_group.values()), height, label=group)
        axes.bar_label(drawn, [three_digits(value) for value in of_group.values()], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the values
    axes.grid(axis="x", alpha=0.3)
    if len(values) > 1:
        figure.legend(loc="outside lower center", ncols=len(values))
    figure.savefig(path, dpi=120)
