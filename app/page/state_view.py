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

from mlx_gateloop.io.files import replacing
from mlx_gateloop.watch import EndlessTrace
from mlx_gateloop.watch.measures import HIGH, LOW
from mlx_gateloop.watch.recordings import NOT_FOUND

from ..generation.run import RecordedRuns, Run, public_line
from ..generation.worker_pool import WorkerPool
from . import scripts
from .sharing import has_system, shared_page

T = TypeVar("T")
LOG = logging.getLogger(__name__)
RESETS_EVERY = 32  # tokens, and a share of a long text: they need a look at all of it
MOST_COLUMNS, MOST_BYTES = 1024, 4 * 2**20  # in an answer; the page asks again for the rest
MOST_ARRAYS = 128 * 2**20  # bytes of the last tokens' transitions in a file
KEPT_ARRAYS = 4  # runs with files for download, the oldest is deleted first
NAME_CHARACTERS = 48  # of a file's
OFF = "The live view is off: turn it on in Settings, and it begins with the next answer."


def state_view(runs: RecordedRuns, elem_id: str, linked: str = "") -> gr.HTML:
    """Make the component; its value is `shown(run)` or None.

    A function and not a subclass: Gradio writes a stub beside the source of every subclass.

    Args:
        runs: The runs to look at, by id.
        elem_id: Of the element on the page.
        linked: Name of a group of views that show the same places.
    """

    async def columns(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 3, _columns, _quick())

    async def row(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 2, _row, _slow())

    async def arrays(request: object) -> str | None:
        return await ask(runs, request, 0, _arrays, _slow())

    async def share(request: object) -> dict[str, str] | None:
        return await ask(runs, request, 1, _share, _slow())

    async def shared(request: object) -> int:
        return count_shared(runs, request)

    return gr.HTML(
        value=None,
        html_template=(scripts.STATIC / "state_view.html").read_text(encoding="utf-8"),
        css_template=(scripts.STATIC / "state_view.css").read_text(encoding="utf-8"),
        js_on_load=scripts.call("state_view", "show", "element", "props", "server", "watch"),
        server_functions=[columns, row, arrays, share, shared],
        elem_id=elem_id,
        linked=linked,
        low=float(np.log(LOW)),
        high=float(np.log(HIGH)),
    )


class Changes:
    """Passes on a value that has changed; otherwise the page keeps what it shows."""

    def __init__(self) -> None:
        self._last: object = self  # equal to nothing

    def __call__(self, value: object) -> object:
        same, self._last = value == self._last, value
        return gr.skip() if same else value


def shown(run: Run) -> dict[str, object] | None:
    """Return the value that makes a view follow a run, or says why there is nothing to see.

    Returns:
        The value; None until the model has read something.
    """
    if (trace := run.trace) is None:
        return {"hint": OFF} if run.done and run.text else None
    if not trace.layers:
        # refused recurrences come after the attention layers
        reason = [NOT_FOUND, *run.unwatched.values()][-1]
        return {"hint": public_line(f"Nothing to see, the layers are {reason}.")}
    parts = zip(trace.names, trace.kinds, trace.channels, trace.is_real, strict=True)
    layers = [
        {"label": _label(i, *names), "channels": channels, "real": is_real}
        for i, (*names, channels, is_real) in enumerate(parts)
    ]
    return {
        "run": run.id,
        "layers": layers,
        "picker": _picker(run, trace),
        "name": file_name(run),
        "system": has_system(run),
    }


def _label(layer: int, path: str, kind: str) -> str:
    """Name a layer; ours are all of one kind."""
    return str(layer + 1) if kind == "gate loop" else f"{layer + 1}: {_place(path)} · {kind}"


def _place(path: str) -> str:
    return path[max(path.find("layers."), 0) :]


def _picker(run: Run, trace: EndlessTrace) -> list[list[object]]:
    """List the numbers of the layers and their labels, with -1 those that are not watched."""
    rows = {
        path: [layer, _label(layer, path, kind)]
        for layer, (path, kind) in enumerate(zip(trace.names, trace.kinds, strict=True))
    }
    for path, reason in run.unwatched.items():
        rows[path] = [-1, public_line(f"{_place(path)} · {reason}")]
    by_number = sorted(rows, key=lambda path: [(len(part), part) for part in path.split(".")])
    return [rows[path] for path in by_number]


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


async def ask(
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


def count_shared(runs: RecordedRuns, request: object) -> int:
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
    run: Run, trace: EndlessTrace, layer: int, start: int, known: int
) -> dict[str, object] | None:
    """Return the news since `start` columns of a layer and `known` tokens."""
    if not 0 <= layer < trace.layers:
        return None
    done = run.done  # read first: what is read later is then complete
    tokens = min(trace.tokens, len(run.pieces))
    start, known = (min(max(value, 0), tokens) for value in (start, known))
    most = max(1, min(MOST_COLUMNS, MOST_BYTES // (2 * trace.channels[layer])))
    stop, until = min(start + most, tokens), min(known + MOST_COLUMNS, tokens)
    pieces = [
        {"text": p.text, "prompt": p.kind == "prompt", "special": p.special}
        for p in run.pieces[known:until]
    ]
    # They depend on averages over the whole run, so they are found anew, but not at every token.
    every = max(RESETS_EVERY, tokens // RESETS_EVERY)
    due = stop == tokens and (done or start == 0 or start // every != tokens // every)
    return {
        "layer": layer,
        "start": start,
        "columns": base64_of(trace.columns(layer, start, stop)),
        "known": known,
        "averages": base64_of(_to_bytes(trace.averages(known, until))),
        "pieces": pieces,
        "resets": trace.resets(tokens).tolist() if due else None,
        "done": done and until == tokens,
        "last": run.pieces[tokens - 1].text if done and tokens else None,  # its end may come late
        "grouped": trace.grouped,
    }


def _row(run: Run, trace: EndlessTrace, layer: int, token: int) -> dict[str, object] | None:
    """Return how much the state holds of every earlier token, and the likeliest in this place.

    `EndlessTrace.fading` is of all layers. Of the one that is shown comes the channel that keeps
    most of each, the share of it that is left there, and the contribution to the output.
    """
    if not 0 <= layer < trace.layers or not 0 <= token < min(trace.tokens, len(run.pieces)):
        return None
    best, channel = trace.best(layer, token)
    return {
        "fading": _finite(trace.fading(token)),
        "best": np.round(best, 4).tolist(),
        "channel": channel.tolist(),
        "full": _finite(trace.remembered(layer, token)[1]),
        "candidates": [[text, float(chance)] for text, chance in run.pieces[token].candidates],
    }


def _finite(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Round to 4 digits; None where no query or key is kept so far back."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _arrays(run: Run, trace: EndlessTrace) -> str | None:
    """Write a run's last transitions to a file, unless it is there, and return its address."""
    done, tokens = run.done, trace.tokens  # in this order: what is done does not grow
    folder = download_folder()
    file = folder / run.id / f"{file_name(run)}{'' if done else f'-{tokens}-tokens'}.npz"
    try:
        if not file.exists():
            shutil.rmtree(file.parent, ignore_errors=True)  # with fewer tokens
            file.parent.mkdir()
            with replacing(file) as new:
                start = max(tokens - MOST_ARRAYS // (8 * sum(trace.channels)), 0)
                trace.save(new, [piece.text for piece in run.pieces[start:]], start)
        others = [path for path in folder.iterdir() if path != file.parent]  # whatever its time is
        for old in sorted(others, key=lambda p: p.stat().st_mtime)[: 1 - KEPT_ARRAYS]:
            shutil.rmtree(old)
    except OSError as error:
        LOG.warning("transitions cannot be written for download: %s", error)
        return None
    return f"/gradio_api/file={quote(str(file))}"


def _share(run: Run, trace: EndlessTrace, with_system: int) -> dict[str, str] | None:
    if with_system not in (0, 1):
        return None
    return shared_page(run, trace, bool(with_system), file_name(run))


def _to_bytes(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def base64_of(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
