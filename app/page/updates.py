"""Updates of a run for a page, and answers to the page's questions about a run."""

import asyncio
import json
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from inspect import isawaitable, signature
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.recordings import NOT_FOUND
from mlx_gateloop.watch.sharing import base64_of, strength_codes

from ..generation.run import RecordedRuns, Run, public_line
from ..generation.words import Word, Words
from ..generation.worker_pool import WorkerPool
from .sharing import file_name, has_system

UPDATE_SECONDS = 0.12  # between updates; each costs the page a layout
FIRST_SECONDS = 0.02  # between checks for the first text
RESETS_EVERY = 32  # tokens, or 1/32 of a long text, because they depend on all of it
MAX_COLUMNS, MAX_BYTES = 1024, 4 * 2**20  # in one update; the page requests the rest
Reply = dict[str, object] | None  # to a page's question; None if there is nothing to show
OFF = "The live view is off. Turn it on in Settings; it starts with the next answer."


class Updates:
    """Updates of runs for their pages.

    An answer streams updates (`Feed`). A page requests the rest after a change of the layer, a
    reload, or a part of a long text.
    """

    def __init__(self, runs: RecordedRuns) -> None:
        self.runs = runs
        self.pool = WorkerPool(threads=1, max_jobs=64)  # one thread: `Words` is not thread-safe
        self._words: WeakKeyDictionary[Run, Words] = WeakKeyDictionary()
        self.layers: WeakKeyDictionary[Run, int] = WeakKeyDictionary()  # of the last requests

    def words(self, run: Run) -> list[Word]:
        """Find the words of a chat's run; its later updates contain them."""
        return self._words.setdefault(run, Words()).update(run)

    def updates_since(self, run: Run, trace: Trace, layer: int, start: int, known: int) -> Reply:
        """Answer a request for a layer since a column, and for texts since a token."""
        if not 0 <= layer < trace.layers:
            return None
        self.layers[run] = layer
        return self.since(run, trace, layer, start, known)

    def since(self, run: Run, trace: Trace, layer: int, start: int, known: int) -> dict[str, Any]:
        """Return the update after `start` columns of a layer and `known` tokens."""
        done = run.done  # read first: all that follows is then complete
        tokens = min(trace.tokens, len(run.pieces))
        start, known = (min(max(value, 0), tokens) for value in (start, known))
        count = max(1, min(MAX_COLUMNS, MAX_BYTES // (2 * trace.channels[layer])))
        stop, until = min(start + count, tokens), min(known + MAX_COLUMNS, tokens)
        averages = 255 * trace.averages(known, until).clip(0, 1)
        # Resets depend on averages over the whole run; finding them for every token costs too much.
        every = max(RESETS_EVERY, tokens // RESETS_EVERY)
        due = stop == tokens and (done or start == 0 or start // every != tokens // every)
        resets = np.isin(np.arange(tokens), trace.resets(tokens) if due else ())
        return {
            "layer": layer,
            "start": start,
            "columns": base64_of(trace.columns(layer, start, stop)),
            "known": known,
            "averages": base64_of(np.rint(averages).astype(np.uint8)),
            "pieces": [
                {"text": p.text, "prompt": p.kind == "prompt", "special": p.special}
                for p in run.pieces[known:until]
            ],
            "words": self._words_since(run, trace, known, until),
            "resets": base64_of(np.packbits(resets, bitorder="little")) if due else None,
            "tokens": tokens,
            "done": done,
            "last": run.pieces[tokens - 1].text if done and tokens else None,  # may change late
            "grouped": trace.grouped,
        }

    def _words_since(self, run: Run, trace: Trace, known: int, until: int) -> Reply:
        """Return the words since a token, and the strengths of all after the last one."""
        if run not in self._words or not until:
            return None
        words = self.words(run)
        start = bisect_left(words, known, key=lambda word: word.stop)  # the last may have grown
        stop = bisect_right(words, until, key=lambda word: word.stop)
        return {
            "start": start,
            "words": [asdict(word) for word in words[start:stop]],
            "strengths": base64_of(strengths(trace, until - 1, words[:stop])),
            "answer": sum(span.role != "system" for span in run.message_spans) - 1,
        }


class Feed:
    """Successive values of a view for a growing run; the page still shows `earlier`."""

    def __init__(self, updates: Updates, run: Run, earlier: Run | None, chat: bool) -> None:
        self._updates, self._run, self._earlier, self._chat = updates, run, earlier, chat
        self._common_prefix: dict[str, Any] | None = None  # known once the run has a trace
        self._sent = 0
        self._last = ""

    async def __call__(self) -> dict[str, object] | None:
        value = view_state(self._run)
        if value is None or "hint" in value:
            return value
        latest = await self._updates.pool(self._take)
        self._last = latest or self._last  # None if the pool is full
        # as a string: Gradio would send the differences of an object
        return {**value, **(self._common_prefix or {}), "update": self._last}

    def _take(self) -> str:
        run = self._run
        if self._chat:
            self._updates.words(run)
        if self._common_prefix is None:
            self._common_prefix = common_prefix(run, self._earlier)
            # the text of the last one may change
            self._sent = max(int(self._common_prefix.get("common", 0)) - 1, 0)
        assert run.trace is not None
        if len(run.starting) == run.trace.layers:
            run.left = run.trace.left(run.starting)
        layer = self._updates.layers.get(run, 0)
        layer = layer if layer < run.trace.layers else 0  # one may have been excluded since
        latest = self._updates.since(run, run.trace, layer, self._sent, self._sent)
        self._sent = latest["tokens"]
        return json.dumps(latest, ensure_ascii=False, separators=(",", ":"))


async def stream_updates(
    updates: Updates, runs: Sequence[Run], earlier: Run | None, chat: bool
) -> AsyncIterator[list[tuple[Run, dict[str, object] | None]]]:
    """Yield runs with the values of their views after each change, until all are done."""
    feeds = [Feed(updates, run, earlier, chat) for run in runs]
    last: object = None
    while True:
        done = all(run.done for run in runs)  # read first: the last yield shows the end
        if (now := [(len(run.pieces), run.done) for run in runs]) != last:
            yield [(run, await feed()) for run, feed in zip(runs, feeds, strict=True)]
            last = now
        if done:
            break
        started = all(run.text for run in runs)  # the first tokens may have none
        await asyncio.sleep(UPDATE_SECONDS if started else FIRST_SECONDS)


def common_prefix(run: Run, earlier: Run | None) -> dict[str, Any]:
    """Count the first tokens that a run shares with the `earlier` one on its page.

    A branch has the same objects. The page then needs only the rest.
    """
    if earlier is None or earlier is run:
        return {}
    pairs = zip(run.pieces, earlier.pieces, strict=False)
    return {
        "earlier": earlier.id,
        "common": sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs)),
    }


def view_state(run: Run) -> dict[str, object] | None:
    """Return the value of a view for a run, or a hint why there is nothing to show.

    None until the model has read something.
    """
    if (trace := run.trace) is None:
        return {"hint": OFF} if run.done and run.text else None
    if not trace.layers:
        # excluded recurrences come after the attention layers
        reason = [NOT_FOUND, *run.unwatched.values()][-1]
        return {"hint": public_line(f"Nothing to show: the layers are {reason}.")}
    parts = zip(trace.names, trace.kinds, trace.channels, trace.is_real, strict=True)
    layers = [
        {"label": _label(i, *names), "channels": channels, "real": is_real}
        for i, (*names, channels, is_real) in enumerate(parts)
    ]
    return {
        "run": run.id,
        "unrecorded": len(run.earlier),
        "layers": layers,
        "picker": _picker(run, trace),
        "name": file_name(run),
        "model": Path(run.model).name,
        "system": has_system(run),
    }


def _label(layer: int, path: str, kind: str) -> str:
    """Name a layer, with its path and kind for other types of models."""
    return str(layer + 1) if kind == "gate loop" else f"{layer + 1}: {_short_path(path)} · {kind}"


def _short_path(path: str) -> str:
    return path[max(path.find("layers."), 0) :]


def _picker(run: Run, trace: Trace) -> list[list[object]]:
    """List the numbers and labels of the layers; -1 stands for a layer that is not watched."""
    rows = {
        path: [layer, _label(layer, path, kind)]
        for layer, (path, kind) in enumerate(zip(trace.names, trace.kinds, strict=True))
    }
    for path, reason in run.unwatched.items():
        rows[path] = [-1, public_line(f"{_short_path(path)} · {reason}")]
    by_number = sorted(rows, key=lambda path: [(len(part), part) for part in path.split(".")])
    return [rows[path] for path in by_number]


def strengths(trace: Trace, token: int, words: list[Word]) -> npt.NDArray[np.uint8]:
    """Encode the strengths of words after a token; a word is as strong as its strongest token."""
    if not words:
        return np.zeros(0, np.uint8)
    edges = np.array([[word.first, word.stop] for word in words]).ravel()
    row = np.append(trace.retention(token), np.nan)  # the last edge needs an entry
    return strength_codes(np.maximum.reduceat(row, edges)[::2])


def served(
    runs: RecordedRuns, pool: WorkerPool, job: Callable[..., Any]
) -> Callable[[object], Awaitable[Any]]:
    """Make a function that answers a page's request, a run's id and integers, in the pool.

    `job` gets the run, its trace and the integers, and may return an awaitable. Any other request
    is answered by None, and an error by its line.
    """
    parameters = signature(job)

    async def answer(request: object) -> Any:
        id, *numbers = request if isinstance(request, list) and request else [None]
        run = runs.get(id) if isinstance(id, str) else None
        if run is None or run.trace is None or any(type(n) is not int for n in numbers):
            return None
        try:
            given = parameters.bind(run, run.trace, *numbers)
        except TypeError:  # more or fewer integers
            return None
        try:
            result = await pool(job, *given.args)
            return await result if isawaitable(result) else result
        except InputError as error:
            return {"error": public_line(str(error))}

    answer.__name__ = job.__name__.strip("_")
    return answer
