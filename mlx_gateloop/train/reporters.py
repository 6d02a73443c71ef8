"""Receivers of a run's log besides log.jsonl: wandb, tensorboard, and a page that refreshes."""

import html
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.io.files import write_text

Record = dict[str, Any]  # a line of log.jsonl
Reporter = Callable[[Record], None]
Points = list[tuple[float, float]]
PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboardX"}
WIDTH, HEIGHT, REFRESH = 640, 220, 10  # pixels, seconds
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989")
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="{seconds}"><meta name="viewport" content="width=device-width">
<style>:root{{color-scheme:light dark}}body{{font:15px system-ui;max-width:42em;margin:2em auto}}
svg{{width:100%}}pre{{white-space:pre-wrap}}</style><h1>{title}</h1>{body}</html>
"""


def reporters(names: Sequence[str], out: Path, config: dict[str, object]) -> list[Reporter]:
    """Make the reporters of these names, see `PACKAGES`; they begin with their first record."""
    makers = {"wandb": lambda: _wandb(out, config), "tensorboard": lambda: _tensorboard(out)}
    for name in names:
        if name not in makers:
            raise InputError(f"--report-to {name}: unknown; give {' or '.join(PACKAGES)}")
        try:
            import_module(PACKAGES[name])
        except ImportError:
            advice = f"pip install {PACKAGES[name]}"
            raise InputError(f"--report-to {name}: not installed; {advice}") from None
    return [_late(name, makers[name]) for name in names]


def _late(name: str, make: Callable[[], Reporter]) -> Reporter:
    """Make a reporter at its first record: it writes into the run's directory, which is new."""
    made = cache(make)

    def report(record: Record) -> None:
        try:
            made()(record)
        except Exception as error:  # whatever the package raises, such as without a login
            raise InputError(f"--report-to {name}: {one_line(error)}") from error

    return report


def _wandb(out: Path, config: dict[str, object]) -> Reporter:
    from mlx_lm.tuner.callbacks import WandBCallback

    log = WandBCallback("gateloop", str(out), config).on_train_loss_report
    return lambda record: log({"iteration": record["step"]} | _numbers(record))


def _tensorboard(out: Path) -> Reporter:
    writer = import_module("tensorboardX").SummaryWriter(str(out / "tensorboard"))

    def report(record: Record) -> None:
        for name, value in _numbers(record).items():
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return report


def _numbers(record: Record) -> dict[str, float]:
    return {n: v for n, v in record.items() if n != "step" and type(v) in (int, float)}


def draw_page(log: Path, out: Path) -> None:
    """Write page.html: losses, half-lives and samples, drawn from the log."""
    records, title = read_json_lines(log), html.escape(out.absolute().parent.name)
    series = {
        name: [(r["step"], r[key]) for r in records if r.get(key) is not None]
        for name, key in (("training", "loss"), ("validation", "validation_loss"))
    }
    body = f"<h2>Loss (nats per token)</h2>{_chart(series)}"
    lives = [(r["step"], r["half_lives"]) for r in records if r.get("half_lives")]
    layers = range(len(lives[0][1]) if lives else 0)
    series = {f"layer {n}": [(step, values[n]) for step, values in lives] for n in layers}
    body += f"<h2>Median half-life (tokens)</h2>{_chart(series)}"
    for step, text in reversed([(r["step"], r["sample"]) for r in records if "sample" in r]):
        body += f"<h3>Step {step}</h3><pre>{html.escape(text)}</pre>"
    write_text(out, PAGE.format(seconds=REFRESH, title=title, body=body))


def _chart(series: dict[str, Points]) -> str:
    """Draw lines over steps as SVG, with the range of both axes in words."""
    if not (points := [point for line in series.values() for point in line]):
        return "<p>Nothing yet.</p>"
    last, values = max(x for x, _ in points), [y for _, y in points]
    low, high = min(values), max(values)
    across, up, parts, words = WIDTH / last, HEIGHT / ((high - low) or 1), "", []
    for (name, line), colour in zip(series.items(), COLOURS * len(series), strict=False):
        at = " ".join(f"{across * x:.1f},{up * (high - y):.1f}" for x, y in line)
        parts += f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{at}"/>'
        words.append(f'<span style="color:{colour}">{name}</span>')
    box = f'<svg viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" role="img">{parts}</svg>'
    return f"{box}<p>{', '.join(words)}: {low:.3g} to {high:.3g}, {last:,} steps</p>"
