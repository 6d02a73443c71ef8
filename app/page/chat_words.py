"""The words of the chat: how strong each still is, the answer without some, and what one needed."""

import asyncio
from bisect import bisect_right
from functools import cache
from weakref import WeakKeyDictionary

import gradio as gr
import numpy as np

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import EndlessTrace

from ..generation.counterfactual import Dependence, answer_again, ask_dependence
from ..generation.engine import Engine
from ..generation.run import Run, public_line
from ..generation.words import Word, Words
from ..generation.worker_pool import WorkerPool
from . import scripts
from .state_view import ask, base64_of, count_shared

MOST_WORDS = 2048  # in an answer; the page asks again for the rest
UNKNOWN = 0  # the code of a strength that is not recorded
WAIT_SECONDS = 0.02  # between two looks at a result


def chat_words(engine: Engine) -> gr.HTML:
    """Make the component; its value is that of the chat's state view.

    Args:
        engine: Has the runs to look at, and computes what is asked about them.
    """
    runs = engine.recorded
    known: WeakKeyDictionary[Run, Words] = WeakKeyDictionary()
    others: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()  # the answer without some words
    asked: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()  # what a word depended on

    def found(run: Run) -> list[Word]:
        return known.setdefault(run, Words()).update(run)

    def get(run: Run, trace: EndlessTrace, have: int, at: int) -> dict[str, object]:
        return _words(run, trace, found(run), have, at)

    def leave_out(run: Run, _: EndlessTrace, first: int, stop: int) -> dict[str, object]:
        end(run)
        other = answer_again(engine, run, found(run)[max(first, 0) : max(stop, 0)])
        others[run] = other
        return {"again": other.id}

    def end(run: Run, *_: object) -> dict[str, object]:
        if (other := others.pop(run, None)) is not None:
            other.cancel()
        return {}

    def begin(
        run: Run, _: EndlessTrace, word: int
    ) -> tuple[Run, Dependence, str, list[range]] | None:
        words = found(run)
        if not 0 <= word < len(words):
            return None
        if (earlier := asked.pop(run, None)) is not None:
            earlier.cancel()
        begun = ask_dependence(engine, run, words, word)
        asked[run] = begun[0]
        return begun

    async def words(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 2, get, _pool())

    async def forget(request: object) -> dict[str, object] | None:
        try:
            return await ask(runs, request, 2, leave_out, _pool())
        except InputError as error:
            return {"error": public_line(str(error))}

    async def again(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 1, lambda run, _, have: _again(others, run, have), _pool())

    async def undo(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 0, end, _pool())

    async def depends(request: object) -> dict[str, object] | None:
        try:
            begun = await ask(runs, request, 1, begin, _pool())
            return begun and await _dependence(*begun)
        except InputError as error:
            return {"error": public_line(str(error))}

    async def shared(request: object) -> int:
        return count_shared(runs, request)

    return gr.HTML(
        value=None,
        html_template=(scripts.STATIC / "chat_words.html").read_text(encoding="utf-8"),
        js_on_load=scripts.call("chat_words", "show", "element", "props", "server", "watch"),
        server_functions=[words, forget, again, undo, depends, shared],
        elem_id="chat-words",
    )


@cache
def _pool() -> WorkerPool:
    return WorkerPool(threads=1, most=64)  # one: the words of a run are found by one at a time


def _words(
    run: Run, trace: EndlessTrace, words: list[Word], have: int, at: int
) -> dict[str, object]:
    """Return the words since `have`, and how strong all are after one of them.

    Without one (`at` is -1) they are as strong as they are after the last token.
    """
    done = run.done
    tokens = min(trace.tokens, len(run.pieces))
    seen = bisect_right(words, tokens, key=lambda word: word.stop)
    have = min(max(have - 1, 0), seen)  # the last one may have grown
    stop = min(have + MOST_WORDS, seen)
    chosen = 0 <= at < seen
    token = (words[at].stop if chosen else tokens) - 1
    return {
        "start": have,
        "words": [[w.message, w.begin, w.text, w.sentence, w.stop] for w in words[have:stop]],
        "strengths": base64_of(_strengths(trace, token, words[: at + 1 if chosen else stop])),
        "at": at if chosen else None,
        "answer": sum(place.role != "system" for place in run.places) - 1,
        "done": done and stop == seen,
    }


def _strengths(trace: EndlessTrace, token: int, words: list[Word]) -> np.ndarray:
    """Encode how strong words are after a token, each as its strongest token.

    1 to 255 are square roots of shares from 0 to the greatest, as in a shared page.
    """
    if not words:
        return np.zeros(0, np.uint8)
    row = trace.fading(token)
    edges = np.array([[word.first, word.stop] for word in words]).ravel()
    shares = np.maximum.reduceat(np.append(row, np.nan), edges)[::2]  # NaN for the last edge
    known = np.isfinite(shares)
    most = max(shares[known].max(initial=0), 1e-30)
    codes = 1 + np.rint(254 * np.sqrt(np.where(known, shares, 0) / most))
    return np.where(known, codes, UNKNOWN).astype(np.uint8)


def _again(others: "WeakKeyDictionary[Run, Run]", run: Run, have: int) -> dict[str, object] | None:
    """Return the news of the other answer since `have` tokens."""
    if (other := others.get(run)) is None:
        return None
    done = other.done
    texts = [piece.text for piece in other.pieces[other.answer_begin :]]
    have = min(max(have - 1, 0), len(texts))  # the last one may have got its end
    news = {"start": have, "texts": texts[have:], "done": done, "error": other.error}
    return {"again": other.id, **news}


async def _dependence(
    job: Run, work: Dependence, name: str, units: list[range]
) -> dict[str, object] | None:
    try:
        while not job.done:
            await asyncio.sleep(WAIT_SECONDS)
    finally:
        job.cancel()  # if the visitor has left
    if job.error:
        return {"error": job.error}
    if job.stopped:  # another word was asked about
        return None
    return {
        "of": name,
        "units": [[unit.start, unit.stop] for unit in units],
        "losses": [round(loss, 3) for loss in work.losses],
    }
