"""The words of the chat: how strong each still is, the answer without some, and what one needed."""

import re
from difflib import SequenceMatcher
from weakref import WeakKeyDictionary

import gradio as gr

from mlx_gateloop.errors import InputError
from mlx_gateloop.watch import Trace

from ..generation.counterfactual import Dependence, answer_again, ask_dependence
from ..generation.engine import Engine
from ..generation.run import Run, public_line
from ..generation.words import SHOWN
from . import scripts
from .news import News, ask, base64_of, strengths

WORDS = re.compile(r"\s*\w+|\s*\S|\s+")  # blanks belong to the word after them


def chat_words(engine: Engine, news: News) -> gr.HTML:
    """Make the component that paints the words of the chat by what its state view has received."""
    runs, pool, found = engine.recorded, news.pool, news.words
    others: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()  # the answer without some words
    asked: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()  # what a word depended on

    def look(run: Run, trace: Trace, at: int) -> str | None:
        words = found(run)
        if not 0 <= at < len(words) or words[at].stop > trace.tokens:
            return None
        return base64_of(strengths(trace, words[at].stop - 1, words[: at + 1]))

    def leave_out(run: Run, _: Trace, first: int, stop: int) -> dict[str, object]:
        end(run)
        other = answer_again(engine, run, found(run)[max(first, 0) : max(stop, 0)])
        others[run] = other
        return {"again": other.id}

    def end(run: Run, *_: object) -> dict[str, object]:
        if (other := others.pop(run, None)) is not None:
            other.cancel()
        return {}

    def begin(run: Run, _: Trace, word: int) -> tuple[Run, Dependence, str, list[range]] | None:
        words = found(run)
        if not 0 <= word < len(words):
            return None
        if (earlier := asked.pop(run, None)) is not None:
            earlier.cancel()
        begun = ask_dependence(engine, run, words, word)
        asked[run] = begun[0]
        return begun

    async def strong(request: object) -> str | None:
        return await ask(runs, request, 1, look, pool)

    async def forget(request: object) -> dict[str, object] | None:
        try:
            return await ask(runs, request, 2, leave_out, pool)
        except InputError as error:
            return {"error": public_line(str(error))}

    async def again(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 0, lambda run, _: _again(run, others.get(run)), pool)

    async def undo(request: object) -> dict[str, object] | None:
        return await ask(runs, request, 0, end, pool)

    async def depends(request: object) -> dict[str, object] | None:
        try:
            begun = await ask(runs, request, 1, begin, pool)
            return begun and await _dependence(*begun)
        except InputError as error:
            return {"error": public_line(str(error))}

    return gr.HTML(
        html_template=(scripts.STATIC / "chat_words.html").read_text(encoding="utf-8"),
        js_on_load=scripts.call("chat_words", "show", "element", "server"),
        server_functions=[strong, forget, again, undo, depends],
        elem_id="chat-words",
    )


def _again(run: Run, other: Run | None) -> dict[str, object] | None:
    """Return the answer and the other one, each in parts that are the same or changed."""
    if other is None:
        return None
    done, error = other.done, other.error
    before, after = (WORDS.findall(text.translate(SHOWN)) for text in (run.text, other.text))
    rest = [] if done else before[len(after) :]  # while the other grows
    matcher = SequenceMatcher(None, before[: len(before) - len(rest)], after, autojunk=False)
    parts: dict[str, list[tuple[str, bool]]] = {"before": [], "after": []}
    for tag, first, stop, begin, end in matcher.get_opcodes():
        for side, words in (("before", before[first:stop]), ("after", after[begin:end])):
            if words:
                parts[side].append(("".join(words), tag != "equal"))
    if rest:
        parts["before"].append(("".join(rest), False))
    return {"again": other.id, "done": done, "error": error, **parts}


async def _dependence(
    job: Run, work: Dependence, name: str, units: list[range]
) -> dict[str, object] | None:
    await job.ended()
    if job.stopped:  # another word was asked about
        return None
    return {
        "of": name,
        "units": [[unit.start, unit.stop] for unit in units],
        "losses": [round(loss, 3) for loss in work.losses],
    }
