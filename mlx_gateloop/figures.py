"""Plots of a run."""

import json
from pathlib import Path


def training_curves(log_path: Path, png_path: Path) -> None:
    """Draw training and validation loss (nats per token) and the learning rate over steps.

    Args:
        log_path: a run's log.jsonl.
        png_path: the picture; an older one is replaced.
    """
    # The Figure API leaves pyplot's global state and the display alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = [json.loads(line) for line in log_path.read_text().splitlines()]

    def series(name: str) -> tuple[list[int], list[float]]:
        points = [(r["step"], r[name]) for r in records if r.get(name) is not None]
        return [step for step, _ in points], [value for _, value in points]

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axes = figure.add_subplot(xlabel="step", ylabel="loss (nats per token)")
    loss_axes.plot(*series("loss"), label="training")
    loss_axes.plot(*series("validation_loss"), marker="o", label="validation")
    rate_axes = loss_axes.twinx()
    rate_axes.set_ylabel("learning rate")
    rate_axes.plot(*series("learning_rate"), color="0.7", linewidth=1, label="learning rate")
    loss_axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3)
    partial = png_path.with_name(f".{png_path.name}.partial")
    try:
        figure.savefig(partial, format="png", dpi=120)
        partial.replace(png_path)
    finally:
        partial.unlink(missing_ok=True)
