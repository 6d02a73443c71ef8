"""The words of the chat: their strengths, dependences, and answers without chosen words."""

import re
from collections.abc import Awaitable
from difflib import SequenceMatcher
from weakref import WeakKeyDictionary

import gradio as gr

from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.sharing import base64_of

from ..generation.counterfactual import CHANGES, answer_again
from ..generation.engine import Engine
from ..generation.probes import Probe, ask_dependence
from ..generation.run import Run
from ..generation.words import SHOWN
from . import scripts
from .updates import Reply, Updates, served, strengths

LONG = 150_000  # pairs of words; beyond it repeated ones would take long, a cubic time
WORDS = re.compile(r"\s*\w+|\s*\S|\s+")  # whitespace belongs to the next word


def chat_words(engine: Engine, updates: Updates) -> gr.HTML:
    """Make the component that highlights the words of the chat by their strengths."""
    words_of = updates.words
    counterfactuals: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()
    dependences: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()

    def strengths_when(run: Run, trace: Trace, at: int) -> str | None:
        words = words_of(run)
        if not 0 <= at < len(words) or words[at].stop > trace.tokens:
            return None
        return base64_of(strengths(trace, words[at].stop - 1, words[: at + 1]))

    def again(
        run: Run, trace: Trace, first: int, stop: int, change: int, layer: int, *channels: int
    ) -> Reply:
        """Answer without words, or with a change of a layer's channels; of all without any."""
        if not 0 <= change <= len(CHANGES) or not 0 <= layer < trace.layers:
            return None
        undo(run)
        chosen = words_of(run)[max(first, 0) : max(stop, 0)]
        layers = [layer] if channels else range(trace.layers)
        other = answer_again(engine, run, chosen, change, layers, channels or None)
        counterfactuals[run] = other
        return {"run": other.id}

    def counterfactual(run: Run, _: Trace) -> Reply:
        return _compared(run, counterfactuals.get(run))

    def undo(run: Run, *_: Trace) -> dict[str, object]:
        if (other := counterfactuals.pop(run, None)) is not None:
            other.cancel()
        return {}

    def depends(run: Run, _: Trace, word: int) -> Awaitable[Reply] | None:
        words = words_of(run)
        if not 0 <= word < len(words):
            return None
        if (earlier := dependences.pop(run, None)) is not None:
            earlier.cancel()
        started = ask_dependence(engine, run, words, word)
        dependences[run] = started[0]
        return _dependence(*started)

    jobs = strengths_when, again, counterfactual, undo, depends
    return gr.HTML(
        html_template=(scripts.STATIC / "chat_words.html").read_text(encoding="utf-8"),
        js_on_load=scripts.call("chat_words", "show", "element", "server"),
        server_functions=[served(engine.recorded, updates.pool, job) for job in jobs],
        elem_id="chat-words",
    )


def _compared(run: Run, other: Run | None) -> Reply:
    """Split the answer and the other one into parts, each with True if it changed."""
    if other is None:
        return None
    done, error = other.done, other.error
    before, after = (WORDS.findall(text.translate(SHOWN)) for text in (run.text, other.text))
    rest = [] if done else before[len(after) :]  # the other one still grows
    known = before[: len(before) - len(rest)]
    matcher = SequenceMatcher(None, known, after, autojunk=len(known) * len(after) > LONG)
    parts: dict[str, list[tuple[str, bool]]] = {"before": [], "after": []}
    for tag, first, stop, begin, end in matcher.get_opcodes():
        for side, words in (("before", before[first:stop]), ("after", after[begin:end])):
            if words:
                parts[side].append(("".join(words), tag != "equal"))
    if rest:
        parts["before"].append(("".join(rest), False))
    return {"run": other.id, "done": done, "error": error, **parts}


async def _dependence(job: Run, work: Probe, name: str, units: list[range]) -> Reply:
    await job.ended()
    if job.stopped:  # a request for another word replaced this one
        return None
    return {
        "unit": name,
        "units": [[unit.start, unit.stop] for unit in units],
        "losses": [round(loss, 3) for loss in work.result],
    }
