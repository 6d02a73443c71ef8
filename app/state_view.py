"""The live view of a run's state transitions: a gr.HTML with a canvas, and what it asks for."""

import base64
import contextlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import numpy.typing as npt

from app.engine import Engine, Run
from mlx_gateloop.trace import HIGH, LOW

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("colours.js", "store.js", "histogram.js", "state_view.js")
RESETS_EVERY = 32  # tokens
RESET_SHARE = 0.5  # of the channels that keep anything
KEPT_ARRAYS = 4  # files for download, the oldest is deleted first


def state_view(engine: Engine, elem_id: str) -> gr.HTML:
    """The component; its value is `shown(run)` or None.

    A function and not a subclass: Gradio writes a stub beside the source of every subclass.

    Args:
        engine: Knows the runs by their ids.
        elem_id: Of the element on the page.
    """

    def columns(request: list[Any]) -> dict[str, Any] | None:
        return _columns(engine.run(_text(request[0])), *map(int, request[1:4]))

    def row(request: list[Any]) -> dict[str, Any] | None:
        return _row(engine.run(_text(request[0])), *map(int, request[1:3]))

    def arrays(request: list[Any]) -> str | None:
        return _arrays(engine.run(_text(request[0])))

    return gr.HTML(
        value=None,
        html_template=(STATIC / "state_view.html").read_text(encoding="utf-8"),
        css_template=(STATIC / "state_view.css").read_text(encoding="utf-8"),
        js_on_load="\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS),
        server_functions=[columns, row, arrays],
        elem_id=elem_id,
        low=float(np.log(LOW)),
        high=float(np.log(HIGH)),
    )


def shown(run: Run) -> dict[str, Any] | None:
    """The value that makes a view follow a run, None until the model is loaded."""
    if run.trace is None:
        return None
    return {"run": run.id, "layers": run.trace.layers, "channels": run.trace.channels}


@cache
def download_folder() -> Path:
    """Where arrays lie for download; the server may serve files from here, and only from here.

    A new folder for every process, which nobody else can have put there.
    """
    return Path(tempfile.mkdtemp(prefix="gateloop-"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _columns(run: Run | None, layer: int, start: int, known: int) -> dict[str, Any] | None:
    """What is new since `start` columns of a layer and `known` tokens."""
    if run is None or (trace := run.trace) is None or not 0 <= layer < trace.layers:
        return None
    done = run.done  # asked first: what is read after it is complete
    tokens = min(trace.tokens, len(run.pieces))
    start, known = (min(max(value, 0), tokens) for value in (start, known))
    pieces = [{"text": p.text, "prompt": p.kind == "prompt"} for p in run.pieces[known:tokens]]
    # They depend on averages over the whole run, so they are found anew, but not at every token.
    due = done or start == 0 or start // RESETS_EVERY != tokens // RESETS_EVERY
    return {
        "layer": layer,
        "start": start,
        "columns": _base64(trace.columns(layer, start, tokens)),
        "known": known,
        "averages": _base64(_to_bytes(trace.averages(known, tokens))),
        "pieces": pieces,
        "resets": [n for n in trace.resets(layer, share=RESET_SHARE).tolist() if n < tokens]
        if due
        else None,
        "done": done,
    }


def _row(run: Run | None, layer: int, token: int) -> dict[str, Any] | None:
    """What is left of every earlier token, and which tokens were likeliest in this place."""
    if run is None or (trace := run.trace) is None or not 0 <= layer < trace.layers:
        return None
    if not 0 <= token < min(trace.tokens, len(run.pieces)):
        return None
    magnitude, full = trace.remembered(layer, token)
    return {
        "magnitude": np.round(magnitude, 4).tolist(),
        "full": [float(f"{value:.4g}") for value in full],
        "candidates": [[text, float(chance)] for text, chance in run.pieces[token].candidates],
    }


def _arrays(run: Run | None) -> str | None:
    """Writes a run's transitions to a file and returns its address."""
    if run is None or run.trace is None:
        return None
    folder = download_folder()
    file = folder / f"{run.id}.npz"
    run.trace.save(file, [piece.text for piece in run.pieces])
    with contextlib.suppress(FileNotFoundError):  # another download has deleted it
        for old in sorted(folder.glob("*.npz"), key=lambda p: p.stat().st_mtime)[:-KEPT_ARRAYS]:
            old.unlink()
    return f"/gradio_api/file={file}"


def _to_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
