"""The live view of a run's state transitions: a gr.HTML, and what its script asks for."""

import base64
import logging
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import gradio as gr
import numpy as np
import numpy.typing as npt

from mlx_gateloop.files import replacing
from mlx_gateloop.watch.measures import HIGH, LOW
from mlx_gateloop.watch.trace import Trace

from ..generation.run import RecordedRuns, Run
from ..generation.worker_pool import WorkerPool
from . import scripts

T = TypeVar("T")
LOG = logging.getLogger(__name__)
RESETS_EVERY = 32  # tokens
MOST_COLUMNS = 1024  # in an answer; the page asks again for the rest
KEPT_ARRAYS = 4  # runs with files for download, the oldest is deleted first
NAME_CHARACTERS = 48  # of a file's


def state_view(runs: RecordedRuns, elem_id: str) -> gr.HTML:
    """Make the component; its value is `shown(run)` or None.

    A function and not a subclass: Gradio writes a stub beside the source of every subclass.

    Args:
        runs: The runs to look at, by id.
        elem_id: Of the element on the page.
    """

    async def columns(request: object) -> dict[str, object] | None:
        return await _ask(runs, request, 3, _columns, _quick())

    async def row(request: object) -> dict[str, object] | None:
        return await _ask(runs, request, 2, _row, _slow())

    async def arrays(request: object) -> str | None:
        return await _ask(runs, request, 0, _arrays, _slow())

    async def shared(request: object) -> int:
        return _shared(runs, request)

    return gr.HTML(
        value=None,
        html_template=(scripts.STATIC / "state_view.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "state_view.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("state_view", "show", "element", "props", "server", "watch"),
        server_functions=[columns, row, arrays, shared],
        elem_id=elem_id,
        low=float(np.log(LOW)),
        high=float(np.log(HIGH)),
    )


def shown(run: Run) -> dict[str, object] | None:
    """Return the value that makes a view follow a run; None until the model is loaded."""
    if run.trace is None:
        return None
    layers, channels = run.trace.layers, run.trace.channels
    return {"run": run.id, "layers": layers, "channels": channels, "name": file_name(run)}


def file_name(run: Run) -> str:
    """Name a run after its model and prompt, for files."""
    words = re.findall(r"[^\W_]+", f"{Path(run.model).name} {run.prompt[:200]}")
    return "-".join(words)[:NAME_CHARACTERS].strip("-") or "gateloop"


@cache
def download_folder() -> Path:
    """Make the folder of arrays for download, the only one that files are served from.

    It is new in every process, so nobody else can have put files there.
    """
    return Path(tempfile.mkdtemp(prefix="gateloop-"))


@cache
def _quick() -> WorkerPool:
    return WorkerPool(threads=2, most=64)


@cache
def _slow() -> WorkerPool:
    return WorkerPool(threads=1, most=16)


async def _ask(
    runs: RecordedRuns,
    request: object,
    numbers: int,
    job: Callable[..., T | None],
    pool: WorkerPool,
) -> T | None:
    """Answer a page, which may send anything; a request is a run's id and whole numbers."""
    if not isinstance(request, list) or len(request) != 1 + numbers:
        return None
    id, *rest = request
    if not isinstance(id, str) or not all(type(number) is int for number in rest):
        return None
    run = runs.get(id)
    if run is None or (trace := run.trace) is None:
        return None
    return await pool(job, run, trace, *rest)


def _shared(runs: RecordedRuns, request: object) -> int:
    """Count the first tokens that two runs have in common: a branch has the same objects.

    A page that has one of the runs asks for no more than the rest of the other.
    """
    if not isinstance(request, list) or not all(isinstance(id, str) for id in request):
        return 0
    found = [run.pieces for id in request[:2] if (run := runs.get(id)) is not None]
    if len(found) < 2:
        return 0
    pairs = zip(*found, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))


def _columns(
    run: Run, trace: Trace, layer: int, start: int, known: int
) -> dict[str, object] | None:
    """Return the news since `start` columns of a layer and `known` tokens."""
    if not 0 <= layer < trace.layers:
        return None
    done = run.done  # read first: what is read later is then complete
    tokens = min(trace.tokens, len(run.pieces))
    start, known = (min(max(value, 0), tokens) for value in (start, known))
    stop, until = (min(first + MOST_COLUMNS, tokens) for first in (start, known))
    pieces = [{"text": p.text, "prompt": p.kind == "prompt"} for p in run.pieces[known:until]]
    # They depend on averages over the whole run, so they are found anew, but not at every token.
    due = stop == tokens and (done or start == 0 or start // RESETS_EVERY != tokens // RESETS_EVERY)
    return {
        "layer": layer,
        "start": start,
        "columns": _base64(trace.columns(layer, start, stop)),
        "known": known,
        "averages": _base64(_to_bytes(trace.averages(known, until))),
        "pieces": pieces,
        "resets": trace.resets(tokens).tolist() if due else None,
        "done": done and until == tokens,
        "last": run.pieces[tokens - 1].text if done and tokens else None,  # its end may come late
        "full": trace.full,
    }


def _row(run: Run, trace: Trace, layer: int, token: int) -> dict[str, object] | None:
    """Return how much is left of every earlier token, and the likeliest tokens in this place.

    The mean over the channels says little where a single one keeps a token, so the greatest share
    and its channel come with it.
    """
    if not 0 <= layer < trace.layers or not 0 <= token < min(trace.tokens, len(run.pieces)):
        return None
    left = trace.left(layer, token)
    mean, full = trace.remembered(layer, token)
    return {
        "mean": np.round(mean, 4).tolist(),
        "best": np.round(left.max(1), 4).tolist(),
        "channel": left.argmax(1).tolist(),
        "full": [float(f"{value:.4g}") for value in full],
        "candidates": [[text, float(chance)] for text, chance in run.pieces[token].candidates],
    }


def _arrays(run: Run, trace: Trace) -> str | None:
    """Write a run's transitions to a file, unless it is there, and return its address."""
    done, tokens = run.done, trace.tokens  # in this order: what is done does not grow
    folder = download_folder()
    file = folder / run.id / f"{file_name(run)}{'' if done else f'-{tokens}-tokens'}.npz"
    try:
        if not file.exists():
            shutil.rmtree(file.parent, ignore_errors=True)  # with fewer tokens
            file.parent.mkdir()
            with replacing(file) as new:
                trace.save(new, [piece.text for piece in run.pieces])
        others = [path for path in folder.iterdir() if path != file.parent]  # whatever its time is
        for old in sorted(others, key=lambda p: p.stat().st_mtime)[: 1 - KEPT_ARRAYS]:
            shutil.rmtree(old)
    except OSError as error:
        LOG.warning("transitions cannot be written for download: %s", error)
        return None
    return f"/gradio_api/file={quote(str(file))}"


def _to_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
