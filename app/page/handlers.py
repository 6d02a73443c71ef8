"""What the page's buttons do: ask the engine, and pass on what it says while it says it."""

import asyncio
import html
import secrets
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from .. import request_values as settings
from ..generation.engine import Engine, Run
from ..generation.models import ModelInfo
from .state_view import shown

UPDATES_PER_SECOND = 6  # each costs the page a layout; the view asks by itself
History = list[dict[str, str]]


class Answers:
    """Event handlers over one engine; each visitor's runs are known by a secret of the session.

    Args:
        engine: Runs the models.
        first_model: The name of the model to start with.
    """

    def __init__(self, engine: Engine, first_model: str) -> None:
        self.engine = engine
        self.first_model = first_model
        self._running: dict[tuple[str, str], list[Run]] = {}  # by session and tab

    async def chat(
        self, text: str, history: History, session: str, model: str, system: str, *settings: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Answer a new message: yields the text box, the history twice, the view and the status.

        What is refused goes back into the box.
        """
        if not text.strip():
            raise complaint("Type a message first.")
        asked = [*history, {"role": "user", "content": text}]
        box: Any = ""
        try:
            async for answer in self.again(asked, session, model, system, *settings):
                yield box, *answer
                box = gr.skip()  # what is typed meanwhile stays
        except gr.Error:
            yield text, history, displayed(history), gr.skip(), status(None)
            raise

    async def again(
        self, history: History, session: str, model: str, system: str, *settings: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Answer the last message of the history, as after retry and edit."""
        try:
            run = await self._submit(model, with_system(system, history), session, settings)
            view = Changes()
            async for _ in self._follow((session, "chat"), [run]):
                said = [{"role": "assistant", "content": run.text}] if run.text else []
                answer = [*history, *said]
                yield answer, displayed(answer), view(shown(run)), status(run)
        except gr.Error:
            yield history, displayed(history), gr.skip(), status(None)
            raise

    async def complete(
        self, text: str, session: str, model: str, *settings: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Go on with a text: yields the whole text, the view and the status."""
        run = await self._submit(model, text, None, settings)
        view = Changes()
        async for _ in self._follow((session, "complete"), [run]):
            yield text + run.text, view(shown(run)), status(run)

    async def compare(
        self, text: str, session: str, first: str, second: str, as_chat: bool, *settings: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """One prompt through two models: yields text, view and status of each."""
        prompt = [{"role": "user", "content": text}] if as_chat else text
        runs: list[Run] = []
        try:
            for model in (first, second):
                runs.append(await self._submit(model, prompt, None, settings))
        except BaseException:  # the visitor may have left
            for run in runs:
                run.cancel()
            raise
        views = [Changes() for _ in runs]
        async for _ in self._follow((session, "compare"), runs):
            both = zip(runs, views, strict=True)
            yield tuple(part for r, view in both for part in (r.text, view(shown(r)), status(r)))

    def forget(self, session: str) -> None:
        """End a visitor's runs and drop the conversation's states."""
        for tab in ("chat", "complete", "compare"):
            self.stop(session, tab)
        self.engine.forget(session)

    def stop(self, session: str, tab: str) -> None:
        """End what this visitor has running in a tab; what was written stays."""
        for run in self._running.get((session, tab), []):
            run.cancel()

    async def prepare(self, model: str) -> AsyncIterator[str]:
        """Load a model ahead of its first use: yields what the picker says."""
        yield "loading"
        try:
            await self.engine.fetch(model)
            info = self.engine.models.info(model)
            run = self.engine.prepare(model)
        except InputError as error:
            yield "not loaded"
            raise complaint(str(error)) from None
        try:
            while not run.done:
                await asyncio.sleep(0.1)
        finally:
            run.cancel()  # if the visitor has left
        if run.error:
            yield "not loaded"
            raise complaint(run.error)
        yield described(info)

    async def _submit(
        self, model: str, prompt: str | History, conversation: str | None, values: tuple[Any, ...]
    ) -> Run:
        temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, seed, record = values
        try:
            await self.engine.fetch(model)
            sampling = settings.sampling(
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=seed,
            )
            most = settings.whole("max_tokens", max_tokens)
            return self.engine.submit(model, prompt, sampling, most, bool(record), conversation)
        except InputError as error:
            raise complaint(str(error)) from None

    async def _follow(self, where: tuple[str, str], runs: list[Run]) -> AsyncIterator[None]:
        """Yields some times a second until all runs are done; leaving early ends them.

        A tab has one answer at a time: a newer one ends an older one, which then shows no more.
        """
        self.stop(*where)
        self._running[where] = runs
        try:
            while True:
                done = all(run.done for run in runs)  # asked first: the last yield shows the end
                if self._running.get(where) is not runs:
                    return
                yield
                if done:
                    break
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
            for run in runs:
                if run.error:
                    raise complaint(run.error)
        finally:
            for run in runs:
                run.cancel()
            if self._running.get(where) is runs:
                del self._running[where]


class Changes:
    """Passes a value on where it has changed; otherwise the page keeps what it shows."""

    def __init__(self) -> None:
        self._last: Any = self  # equal to nothing

    def __call__(self, value: Any) -> Any:
        same, self._last = value == self._last, value
        return gr.skip() if same else value


def new_session() -> str:
    """A name that nobody can guess, for a visitor's conversation."""
    return secrets.token_urlsafe(16)


def described(info: ModelInfo) -> str:
    """A model in a line; its name is not in it."""
    kind = info.transition.replace("_", "-")
    return f"{info.layers} layers of {info.channels} channels, {kind} transitions"


def with_system(system: str, history: History) -> History:
    """The messages that the model gets."""
    return [{"role": "system", "content": system}, *history] if system.strip() else history


def displayed(history: History) -> list[dict[str, Any]]:
    """The history for gr.Chatbot, which would render HTML in it."""
    return [
        # as an object: Gradio takes indentation out of a plain string
        {**message, "content": [{"type": "text", "text": html.escape(message["content"], False)}]}
        for message in history
    ]


def complaint(message: str) -> gr.Error:
    """An error for the visitor, with what it quotes escaped."""
    message = html.escape(message)
    return gr.Error(message, print_exception=False, duration=8)


def status(run: Run | None) -> str:
    """The figures of a run as HTML; nothing in it comes from a model or a visitor."""
    if run is None:
        return '<div class="stats"><span>ready</span></div>'
    stats = run.stats
    waited = stats.waiting_seconds
    read = f"{stats.prompt_tokens_read:,} of {stats.prompt_tokens:,} tokens"
    figures = [
        (waited > 0.1, "waited", f"{waited:,.1f} s"),
        (stats.first_token_seconds, "first token", f"{1000 * stats.first_token_seconds:,.0f} ms"),
        (stats.prompt_tokens, "read", read),
        (stats.prefill_tokens_per_second, "prefill", _rate(stats.prefill_tokens_per_second)),
        (stats.decode_tokens_per_second, "decode", _rate(stats.decode_tokens_per_second)),
        (stats.state_bytes, "state", f"{stats.state_bytes / 1000:,.1f} kB, constant"),
        (stats.memory_bytes, "memory", f"{stats.memory_bytes / 1e6:,.0f} MB"),
    ]
    chips = [f"<span>{name} <b>{text}</b></span>" for known, name, text in figures if known]
    if not chips:
        chips = ["<span>waiting for the model</span>"]
    if run.done:
        end = "failed" if run.error else "stopped" if run.stopped else "done"
        chips.append(f"<span>{end}</span>")
    return f'<div class="stats">{"".join(chips)}</div>'


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f} tok/s"
