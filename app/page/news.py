"""News of a run for a page: columns of a layer, texts, words and their strengths."""

import asyncio
import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import takewhile
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.recordings import NOT_FOUND

from ..generation.run import RecordedRuns, Run, public_line
from ..generation.words import Word, Words
from ..generation.worker_pool import WorkerPool
from .sharing import file_name, has_system

T = TypeVar("T")
UPDATE_SECONDS = 0.12  # between updates, each of which costs the page a layout
FIRST_SECONDS = 0.02  # between looks for the first token
RESETS_EVERY = 32  # tokens, and a share of a long text: they need a look at all of it
MOST_COLUMNS, MOST_BYTES = 1024, 4 * 2**20  # at once; the page asks for the rest
UNKNOWN = 0  # the code of a strength that is not recorded
OFF = "The live view is off: turn it on in Settings, and it begins with the next answer."


class News:
    """News of runs, for their pages.

    An answer brings its news along (`Feed`). A page asks only for what it lacks: where it has
    changed the layer, was loaded again, or got a part of a long text.
    """

    def __init__(self, runs: RecordedRuns) -> None:
        self.runs = runs
        self.pool = WorkerPool(threads=1, most=64)  # one: words are found by one at a time
        self._words: WeakKeyDictionary[Run, Words] = WeakKeyDictionary()
        self._layers: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    def words(self, run: Run) -> list[Word]:
        """Find the words of a chat's run; from now on its news have them."""
        return self._words.setdefault(run, Words()).update(run)

    async def ask(self, request: object) -> dict[str, object] | None:
        """Answer a page that asks for a layer since a column, and for texts since a token."""
        return await ask(self.runs, request, 3, self._chosen, self.pool)

    def _chosen(
        self, run: Run, trace: Trace, layer: int, start: int, known: int
    ) -> dict[str, object] | None:
        if not 0 <= layer < trace.layers:
            return None
        self._layers[run] = layer
        return self.since(run, trace, layer, start, known)

    def latest(self, run: Run, trace: Trace, sent: int) -> dict[str, object]:
        """Return the news since a token, in the layer that the page has asked for last."""
        layer = self._layers.get(run, 0)
        return self.since(run, trace, layer if layer < trace.layers else 0, sent, sent)

    def since(
        self, run: Run, trace: Trace, layer: int, start: int, known: int
    ) -> dict[str, object]:
        """Return the news since `start` columns of a layer and `known` tokens."""
        done = run.done  # read first: what is read later is then complete
        tokens = min(trace.tokens, len(run.pieces))
        start, known = (min(max(value, 0), tokens) for value in (start, known))
        most = max(1, min(MOST_COLUMNS, MOST_BYTES // (2 * trace.channels[layer])))
        stop, until = min(start + most, tokens), min(known + MOST_COLUMNS, tokens)
        averages = 255 * trace.averages(known, until).clip(0, 1)
        # Resets depend on averages over the whole run: found again, but not at every token.
        every = max(RESETS_EVERY, tokens // RESETS_EVERY)
        due = stop == tokens and (done or start == 0 or start // every != tokens // every)
        return {
            "layer": layer,
            "start": start,
            "columns": base64_of(trace.columns(layer, start, stop)),
            "known": known,
            "averages": base64_of(np.rint(averages).astype(np.uint8)),
            "pieces": [
                [p.text, int(p.kind == "prompt"), int(p.special)] for p in run.pieces[known:until]
            ],
            "words": self._words_since(run, trace, known, until),
            "resets": trace.resets(tokens).tolist() if due else None,
            "tokens": tokens,
            "done": done,
            "last": run.pieces[tokens - 1].text if done and tokens else None,  # may come late
            "grouped": trace.grouped,
        }

    def _words_since(
        self, run: Run, trace: Trace, known: int, until: int
    ) -> dict[str, object] | None:
        """Return the words since a token, and how strong all are after the last one."""
        if run not in self._words or not until:
            return None
        words = self.words(run)
        start = bisect_left(words, known, key=lambda word: word.stop)  # the last may have grown
        stop = bisect_right(words, until, key=lambda word: word.stop)
        return {
            "start": start,
            "words": [[w.message, w.begin, w.text, w.sentence, w.stop] for w in words[start:stop]],
            "strengths": base64_of(strengths(trace, until - 1, words[:stop])),
            "answer": sum(place.role != "system" for place in run.places) - 1,
        }


class Feed:
    """The values of a view while its run is written; `earlier` is what the page shows."""

    def __init__(self, news: News, run: Run, earlier: Run | None, chat: bool) -> None:
        self._news, self._run, self._chat = news, run, chat
        self._follows = follows(run, earlier)
        self._sent: int | None = None
        self._last = ""

    async def __call__(self) -> dict[str, object] | None:
        value = shown(self._run)
        if value is None or "hint" in value:
            return value
        latest = await self._news.pool(self._take)
        self._last = latest or self._last  # a busy server gives none for a while
        # as a string, or Gradio would send its differences from the last news, part by part
        return {**value, **self._follows, "news": self._last}

    def _take(self) -> str:
        run = self._run
        if self._chat:
            self._news.words(run)
        if self._sent is None:
            self._sent = max(int(self._follows.get("common", 0)) - 1, 0)  # its text may have grown
        assert run.trace is not None
        latest = self._news.latest(run, run.trace, self._sent)
        self._sent = int(latest["tokens"])  # type: ignore[call-overload]
        return json.dumps(latest, ensure_ascii=False, separators=(",", ":"))


async def updates(
    news: News, runs: Sequence[Run], earlier: Run | None, chat: bool
) -> AsyncIterator[list[tuple[Run, dict[str, object] | None]]]:
    """Yield runs with the values of their views, whenever there is something new, to their end."""
    feeds = [Feed(news, run, earlier, chat) for run in runs]
    last: object = None
    while True:
        done = all(run.done for run in runs)  # asked first: the last yield shows the end
        now = [(len(run.pieces), run.done) for run in runs]
        if now != last:
            yield [(run, await feed()) for run, feed in zip(runs, feeds, strict=True)]
            last = now
        if done:
            break
        begun = all(run.stats.tokens for run in runs)
        await asyncio.sleep(UPDATE_SECONDS if begun else FIRST_SECONDS)


def follows(run: Run, earlier: Run | None) -> dict[str, Any]:
    """Say how many first tokens a run has in common with what its page shows until now.

    A branch has the same objects. The page then asks for no more than the rest.
    """
    if earlier is None or earlier is run:
        return {}
    pairs = zip(run.pieces, earlier.pieces, strict=False)
    return {
        "earlier": earlier.id,
        "common": sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs)),
    }


def shown(run: Run) -> dict[str, object] | None:
    """Return the value that makes a view show a run, or says why there is nothing to see.

    None until the model has read something.
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
        "unrecorded": len(run.earlier),
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


def _picker(run: Run, trace: Trace) -> list[list[object]]:
    """List the numbers of the layers and their labels, with -1 those that are not watched."""
    rows = {
        path: [layer, _label(layer, path, kind)]
        for layer, (path, kind) in enumerate(zip(trace.names, trace.kinds, strict=True))
    }
    for path, reason in run.unwatched.items():
        rows[path] = [-1, public_line(f"{_place(path)} · {reason}")]
    by_number = sorted(rows, key=lambda path: [(len(part), part) for part in path.split(".")])
    return [rows[path] for path in by_number]


def strengths(trace: Trace, token: int, words: list[Word]) -> npt.NDArray[np.uint8]:
    """Encode how strong words are after a token, each as its strongest token.

    1 to 255 are square roots of shares from 0 to the greatest, as in a shared page.
    """
    if not words:
        return np.zeros(0, np.uint8)
    row = trace.retention(token)
    edges = np.array([[word.first, word.stop] for word in words]).ravel()
    shares = np.maximum.reduceat(np.append(row, np.nan), edges)[::2]  # NaN for the last edge
    known = np.isfinite(shares)
    most = max(shares[known].max(initial=0), 1e-30)
    codes = 1 + np.rint(254 * np.sqrt(np.where(known, shares, 0) / most))
    return np.where(known, codes, UNKNOWN).astype(np.uint8)


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


def base64_of(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
