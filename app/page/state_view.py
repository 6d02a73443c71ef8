"""The live view of a run's state transitions: a gr.HTML and its server functions."""

import base64
import html
import json
from io import BytesIO

import gradio as gr
import numpy as np
import numpy.typing as npt

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.sharing import HIGH, LOW

from ..generation.engine import Engine
from ..generation.probes import ask_channels, ask_lens
from ..generation.run import Run
from ..generation.worker_pool import WorkerPool
from . import scripts
from .sharing import file_name, share
from .updates import Reply, Updates, served

MAX_ARRAYS = 64 * 2**20  # bytes of transitions in a file: the last tokens
SLOW = WorkerPool(threads=1, max_jobs=16)


def state_view(engine: Engine, updates: Updates, elem_id: str, linked: str = "") -> gr.HTML:
    """Make the view of a feed; views with the same `linked` name scroll together.

    A function and not a subclass, because Gradio writes a stub file for every subclass.
    """

    async def probe(run: Run, trace: Trace, layer: int, token: int, kind: int) -> Reply:
        if not 0 <= layer < trace.layers or not 0 <= token < len(run.pieces):
            return None
        if not token:
            raise InputError("words: there is no word before this one")
        asked = ask_channels(engine, run, layer, token) if kind else ask_lens(engine, run, token)
        job, work = asked
        await job.ended()
        return {"result": work.result, "seconds": work.seconds}

    return gr.HTML(
        html_template=(scripts.STATIC / "state_view.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "state_view.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("state_view", "show", f"'{elem_id}'", "element", "props", "server"),
        server_functions=[
            served(updates.runs, updates.pool, updates.updates_since),
            *(served(updates.runs, SLOW, job) for job in (_row, _arrays, share, probe)),
        ],
        elem_id=elem_id,
        linked=linked,
        first=_tour_picture(),
        rates=[LOW, HIGH],
    )


def feed(elem_id: str) -> gr.HTML:
    """Make the component that receives the values of a `Feed` for a view.

    It is separate from the view, because Gradio compiles HTML and CSS for every value.
    """
    return gr.HTML(
        value=None,
        html_template="",
        js_on_load=scripts.call("state_view", "follow", f"'{elem_id}'", "props", "watch"),
        visible="hidden",
    )


def _row(run: Run, trace: Trace, layer: int, token: int) -> Reply:
    """Return the retention of every earlier token, and the likeliest tokens here.

    "retention" covers all layers. For the given layer, "channel" holds most of each token, "best"
    is its share there, and "full" its contribution to the output.
    """
    if not 0 <= layer < trace.layers or not 0 <= token < min(trace.tokens, len(run.pieces)):
        return None
    best, channel = trace.best(layer, token)
    return {
        "retention": _finite(trace.retention(token)),
        "best": np.round(best, 4).tolist(),
        "channel": channel.tolist(),
        "full": _finite(trace.remembered(layer, token)[1]),
        "candidates": run.pieces[token].candidates,
        "next": run.following if token == len(run.pieces) - 1 else (),
    }


def _finite(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Round to 4 digits; None where queries and keys are no longer stored."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _arrays(run: Run, trace: Trace) -> dict[str, str]:
    """Return a run's last transitions as a file, its "name" and "data" in base64."""
    tokens, file = trace.tokens, BytesIO()
    start = max(tokens - MAX_ARRAYS // (8 * max(sum(trace.channels), 1)), 0)
    trace.save(file, [piece.text for piece in run.pieces[start:tokens]], start)
    return {"name": f"{file_name(run)}.npz", "data": base64.b64encode(file.getvalue()).decode()}


def _tour_picture() -> str:
    """Write the tour's recorded chat, each word as faint as when the answer has ended.

    `docs/tour_recording.py` makes tour.json.
    """
    recorded = json.loads((scripts.STATIC / "tour.json").read_text("utf-8"))
    words = {"prompt": "", "answer": ""}
    for text, kind, kept in zip(*(recorded[k] for k in ("texts", "kinds", "kept")), strict=True):
        if kind in words:
            words[kind] += f"<span style='--kept: {kept}'>{html.escape(text)}</span>"
    return "".join(f"<p class='{kind}'>{text.strip()}</p>" for kind, text in words.items())
