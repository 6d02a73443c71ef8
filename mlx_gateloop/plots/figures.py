"""Plots of a run, of a comparison of runs, and of state transitions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.plots.style import (
    FAINT,
    Line,
    add_legend,
    add_ranked_legend,
    line_style,
    new_figure,
    save_png,
)
from mlx_gateloop.watch import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[Line, Sequence[Sequence[tuple[int, float]]]]  # each model's runs: step, value
TURNS = ("−π", "−π/2", "0", "π/2", "π")  # noqa: RUF001
BINS, MIN_ANSWERS = 32, 10  # for accuracy over span; bins with fewer answers are omitted
MAX_RANGES = 4  # readers cannot distinguish more overlapping ranges


def training_curves(log_path: Path, png_path: Path) -> None:
    """Draw the losses (nats per token) and the learning rate of a run's log.jsonl."""
    records = read_json_lines(log_path)
    figure = new_figure(8, 4.5)
    loss_axes = figure.add_subplot(xlabel="step", ylabel="loss (nats per token)")
    loss_axes.plot(*_series(records, "loss"), label="training")
    loss_axes.plot(*_series(records, "validation_loss"), marker="o", label="validation")
    rates = loss_axes.twinx()
    rates.set_ylabel("learning rate")
    rates.plot(*_series(records, "learning_rate"), color="0.7", linewidth=1, label="learning rate")
    loss_axes.grid(alpha=FAINT)
    add_legend(figure)
    save_png(figure, png_path)


def learning(curves: Curves, measure: str, png_path: Path) -> None:
    """Draw a measure on validation data over steps: the mean of runs, and the range of a few."""
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot(xlabel="step", ylabel=f"validation {measure}")
    for line, runs in curves.items():
        _draw_mean(axes, runs, line, len(curves))
    axes.grid(alpha=FAINT)
    add_ranked_legend(figure, axes)
    save_png(figure, png_path)


def compression(
    curves: Curves, bytes_per_step: int, seconds: Mapping[Line, float], png_path: Path
) -> None:
    """Draw bits per byte of validation text over the bytes read, and over the time that it took."""
    figure = new_figure(12, 4.5)
    read = figure.add_subplot(1, 2, 1, xlabel="megabytes read", ylabel="validation bits per byte")
    time = figure.add_subplot(1, 2, 2, xlabel="training time (s)", sharey=read)
    for line, runs in curves.items():
        _draw_mean(read, runs, line, len(curves), bytes_per_step / 1e6)
        _draw_mean(time, runs, line, len(curves), seconds[line])
    for axes in (read, time):
        axes.grid(alpha=FAINT)
    add_ranked_legend(figure, read)
    save_png(figure, png_path)


def _draw_mean(
    axes: "Axes",
    runs: Sequence[Sequence[tuple[int, float]]],
    line: Line,
    lines: int,
    per_step: float = 1,
) -> None:
    """Draw the mean of runs over the steps that all have, and their range if lines are few."""
    known = [dict(points) for points in runs]
    steps = sorted(set.intersection(*map(set, known)))
    values = np.array([[run[step] for step in steps] for run in known])
    _draw_with_range(axes, np.array(steps) * per_step, values, line, lines)


def _draw_with_range(
    axes: "Axes", positions: np.ndarray, values: np.ndarray, line: Line, lines: int
) -> None:
    """Draw the mean of values `[runs, positions]`, and their range if lines are few."""
    if not len(positions):
        return
    axes.plot(positions, values.mean(0), label=line.name, **line_style(line.number))
    if len(values) > 1 and lines <= MAX_RANGES:
        area = {"color": line_style(line.number)["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(positions, values.min(0), values.max(0), **area)


def accuracy_over_span(
    counts: Mapping[Line, Sequence[tuple[np.ndarray, np.ndarray]]], span: str, png_path: Path
) -> None:
    """Draw accuracy over the span of answers: the mean of runs, and the range of a few."""
    figure = new_figure(10, 4.5)
    axes = figure.add_subplot(xlabel=span, ylabel="test accuracy")
    for line, runs in counts.items():
        length = len(runs[0][0])
        edges = np.unique(np.append(0, np.geomspace(1, length, BINS).astype(int)))[:-1]
        asked, right = (np.array([np.add.reduceat(r[i], edges) for r in runs]) for i in (0, 1))
        known = (asked >= MIN_ANSWERS).all(0)
        centres = (edges + (np.append(edges[1:], length) - 1))[known] / 2
        _draw_with_range(axes, centres, right[:, known] / asked[:, known], line, len(counts))
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=FAINT)
    add_ranked_legend(figure, axes, np.mean)
    save_png(figure, png_path)


def transitions(trace: Trace, marks: Sequence[int], png_path: Path) -> None:
    """Draw the transitions of one sequence: a row per layer, channels downwards, then averages."""
    import matplotlib

    figure = new_figure(11, 1.5 * trace.layers + 3)
    grid = figure.subplots(trace.layers + 1, 2, sharex=True, squeeze=False)
    plasma = matplotlib.colormaps["plasma"](np.linspace(0, 0.85, trace.layers))

    def mean_direction(angles: np.ndarray, axis: int) -> Any:
        return np.angle(np.exp(1j * angles).mean(axis))

    columns: list[tuple[str, Any, float, float, str, Callable[..., Any]]] = [
        ("|a|", trace.magnitude, 0, 1, "viridis", np.mean),
        ("arg a", trace.phase, -np.pi, np.pi, "twilight_shifted", mean_direction),
    ]
    for (*images, bottom), column in zip(grid.T, columns, strict=True):
        name, read, low, high, colours, average = column
        values = [read(layer) for layer in range(trace.layers)]
        for layer, axes in enumerate(images):
            label = f"layer {layer + 1}"
            shape = {"aspect": "auto", "interpolation": "nearest"}
            image = axes.imshow(values[layer].T, colours, vmin=low, vmax=high, **shape)
            axes.set_ylabel(label)
            bottom.plot(average(values[layer], 1), linewidth=1, color=plasma[layer], label=label)
        bottom.plot(average(np.concatenate(values, 1), 1), color="black", label="all")
        bottom.set(xlabel="position", ylabel=f"average {name}", ylim=(low, high))
        for mark in marks:
            bottom.axvline(mark, color="0.6", linestyle=":", zorder=0)
        images[0].set_title(f"{name}, channels from top to bottom")
        scale = figure.colorbar(image, ax=images, pad=0.01, aspect=8 * len(images))
    for axis in (bottom.yaxis, scale.ax.yaxis):  # of the phase
        axis.set_ticks(np.pi * np.linspace(-1, 1, 5), TURNS)
    bottom.set_xlim(-0.5, trace.tokens - 0.5)
    add_legend(figure, bottom)
    save_png(figure, png_path)


def _series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = {r["step"]: r[name] for r in records if r.get(name) is not None}
    return [*points], [*points.values()]
