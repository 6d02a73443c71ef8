"""Plots of the tables."""

from collections.abc import Mapping
from pathlib import Path

from mlx_gateloop.bench.measure import three_digits
from mlx_gateloop.plots.style import add_grid, add_legend, new_figure, save_png

Series = Mapping[str, Mapping[int, float]]


def lines(path: Path, title: str, xlabel: str, ylabel: str, series: Series) -> None:
    """Draw curves over powers of two, both axes logarithmic.

    Args:
        path: The PNG.
        title: Its title.
        xlabel: Label of the sizes.
        ylabel: Label of the values.
        series: The value at each size, by "contender, kind". Each contender has a colour; its
            gradient is dashed.
    """
    figure = new_figure(8, 4.5)
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
    add_grid(axes)
    add_legend(figure)
    save_png(figure, path)


def _colour(contender: str, series: Series) -> str:
    names = list(dict.fromkeys(label.rpartition(", ")[0] for label in series))
    return f"C{names.index(contender)}"


def bars(path: Path, title: str, xlabel: str, values: Mapping[str, Mapping[str, float]]) -> None:
    """Draw groups of horizontal bars on a logarithmic axis, each with its value.

    Args:
        path: The PNG.
        title: Its title.
        xlabel: Label of the values.
        values: The values, by group (colour), then by contender.
    """
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    figure = new_figure(8, 1.5 + 0.3 * len(names) * len(values))
    axes = figure.add_subplot(title=title, xlabel=xlabel, xscale="log")
    height = 0.8 / len(values)
    for i, (group, of_group) in enumerate(values.items()):
        places = [names.index(name) + (i - (len(values) - 1) / 2) * height for name in of_group]
        drawn = axes.barh(places, list(of_group.values()), height, label=group)
        axes.bar_label(drawn, [three_digits(value) for value in of_group.values()], padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the values
    add_grid(axes, "x")
    if len(values) > 1:
        add_legend(figure)
    save_png(figure, path)
