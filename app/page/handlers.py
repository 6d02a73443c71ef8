"""Handlers of the page's events: they ask the engine and stream its output to the page."""

import asyncio
import html
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..generation.engine import Engine
from ..generation.run import Run
from ..generation.states import as_messages
from ..generation.words import SHOWN
from ..server import request_values
from .news import News, follows, shown, updates
from .status import described, status
from .visits import History, Visits

LEAVING_SECONDS = 5
NO_VIEW: dict[str, object] = {
    "hint": "The view begins with the next answer: send a message, or retry the last one."
}


class Handlers:
    """Event handlers over one engine; a visitor's runs are known by the secret of the session.

    `values` are those of the page's controls by name: fields of `Sampling`, max_tokens and record.
    """

    def __init__(self, engine: Engine, first_model: str) -> None:
        self.engine = engine
        self.first_model = first_model
        self.visits = Visits(engine.limits.conversations)
        self.news = News(engine.recorded)
        self._running: dict[tuple[str, str], list[Run]] = {}  # by session and tab

    async def chat(
        self, text: str, history: History, session: str, model: str, system: str, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Answer a new message: yields the text box, the history twice, the view and the status.

        A refused message goes back into the box.
        """
        if not text.strip():
            raise complaint("Type a message first.")
        asked = [*history, {"role": "user", "content": text}]
        box: object = ""
        try:
            async for update in self.answer(asked, session, model, system, **values):
                yield box, *update
                box = gr.skip()  # what is typed meanwhile stays
        except gr.Error:
            self.visits.put(session, history)
            yield text, history, displayed(history), gr.skip(), status(None)
            raise

    async def answer(
        self, history: History, session: str, model: str, system: str, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Answer the last message: yields the history twice, the view and the status.

        A chat that was replaced meanwhile is shown last: a busy page may show an update of the
        answer later than the new chat.
        """
        answering = None
        try:
            asked = [(model, with_system(system, history))]
            async for ((run, view),) in self._follow((session, "chat"), asked, values):
                reply = [{"role": "assistant", "content": run.text}] if run.text else []
                messages = [*history, *reply]
                self.visits.put(session, messages, run)
                answering = run
                yield messages, displayed(messages), view, status(run)
            messages, shows = self.visits.get(session)
            if answering not in (None, shows) and (session, "chat") not in self._running:
                yield self._shows(messages, shows)
        except gr.Error:
            yield history, displayed(history), gr.skip(), status(None)
            raise

    async def complete(
        self, text: str, session: str, model: str, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Continue a text: yields the whole text, the view and the status."""
        if not text.strip():
            raise complaint("Type the beginning of a text first.")
        async for ((run, view),) in self._follow((session, "complete"), [(model, text)], values):
            yield text + run.text, view, status(run)

    async def compare(
        self, text: str, session: str, left: str, right: str, as_chat: bool, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Give one prompt to two models: yields text, view and status of each."""
        if not text.strip():
            raise complaint("Type a prompt first.")
        prompt = [{"role": "user", "content": text}] if as_chat else text
        asked = [(left, prompt), (right, prompt)]
        async for both in self._follow((session, "compare"), asked, values):
            yield tuple(part for run, view in both for part in (run.text, view, status(run)))

    def undo(self, left: History, session: str, model: str, system: str) -> tuple[object, ...]:
        """Go back to these messages: returns the history twice, the view then and the status."""
        run = self._answered(with_system(system, left), session, model) if left else None
        _, earlier = self.visits.get(session)
        self.visits.put(session, left, run)
        return self._shows(left, run, earlier)

    def _answered(self, messages: History, session: str, model: str) -> Run | None:
        """Find the run that wrote the last of these messages."""
        try:
            fingerprint = self.engine.models.fingerprint(model)
        except InputError:  # another model is chosen now
            return None
        pairs = as_messages(messages, complete=False)
        states = self.engine.states.prefixes(session, fingerprint, pairs)
        made = states[-1].run if states and states[-1].messages == pairs else None
        return made() if made else None

    def _shows(
        self, messages: History, run: Run | None, earlier: Run | None = None
    ) -> tuple[object, ...]:
        """Return the history twice, the view and the status."""
        view: dict[str, object] | None = NO_VIEW if messages else None
        if run is not None and self.engine.recorded.get(run.id) is not None:
            view = shown(run)
            if view and "hint" not in view:
                view |= follows(run, earlier)
        return messages, displayed(messages), view, status(run)

    async def clear(self, session: str) -> tuple[object, ...]:
        """Begin a new conversation: returns the empty history twice, no view and the status."""
        self.replace(session, [])
        return self._shows([], None)

    def replace(self, session: str, messages: History) -> None:
        """End the answer of a visitor's chat, and show other messages."""
        runs = self._running.pop((session, "chat"), [])
        self.visits.put(session, messages)
        for run in runs:
            run.cancel()

    async def resume(self, kept: str, session: str) -> tuple[object, ...]:
        """Continue the chat of a page that was loaded again.

        An answer that was written ends with the page before; this waits a moment for that.
        Returns the session twice, for the server and the tab; the history twice, view and status.
        """
        if not self.visits.come_back(kept):
            return gr.skip(), session, *[gr.skip()] * 4
        _, run = self.visits.get(kept)
        end = time.monotonic() + LEAVING_SECONDS
        while run is not None and not run.done and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return kept, kept, *self._shows(*self.visits.get(kept))

    def forget(self, session: str) -> None:
        """End a visitor's runs and drop the conversation's states, with its last page."""
        if not self.visits.leave(session):
            return
        for tab in ("chat", "complete", "compare"):
            self.stop(session, tab)
        self.engine.states.forget(session)

    def stop(self, session: str, tab: str) -> None:
        """End a visitor's runs in a tab; what was written stays."""
        runs = self._running.get((session, tab), [])
        for run in runs:
            run.cancel()
        if not runs:  # their models are still fetched
            self._running.pop((session, tab), None)

    async def prepare(self, model: str) -> str:
        """Load a model ahead of its first use; returns the text below the picker."""
        try:
            await self.engine.fetch(model)
            info = self.engine.models.info(model)
            await self.engine.prepare(model).ended()
        except InputError as error:
            raise complaint(str(error)) from None
        return described(info)

    def _submit(
        self, model: str, prompt: str | History, where: tuple[str, str], values: dict[str, object]
    ) -> Run:
        session, tab = where
        sampling = {k: v for k, v in values.items() if k not in ("max_tokens", "record")}
        run = self.engine.submit(
            model,
            prompt,
            request_values.sampling(**sampling),
            request_values.whole("max_tokens", values["max_tokens"]),
            bool(values["record"]),
            session if tab == "chat" else None,
        )
        run.prompt = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return run

    async def _follow(
        self,
        where: tuple[str, str],
        asked: Sequence[tuple[str, str | History]],
        values: dict[str, object],
    ) -> AsyncIterator[list[tuple[Run, Any]]]:
        """Run prompts; yield their runs and views some times a second until all are done.

        Leaving early ends them. A tab has one answer at a time: a newer one, even a rejected one,
        ends an older one, even if its models are still fetched; that is no longer shown.
        """
        self.stop(*where)
        session, tab = where
        earlier = self.visits.get(session)[1] if tab == "chat" else None
        runs: list[Run] = []
        self._running[where] = runs

        def replaced() -> bool:
            return self._running.get(where) is not runs

        try:
            for model, _ in asked:
                await self.engine.fetch(model)
                if replaced():
                    return
            for model, prompt in asked:
                runs.append(self._submit(model, prompt, where, values))
            async for update in updates(self.news, runs, earlier, tab == "chat"):
                if replaced():
                    return
                yield update
            for run in runs:
                if run.error:
                    raise complaint(run.error)
        except InputError as error:
            if not replaced():
                raise complaint(str(error)) from None
        finally:
            for run in runs:
                run.cancel()
            if not replaced():
                self._running.pop(where, None)  # another thread may have been faster


def new_session() -> str:
    """Return an id for a visitor's conversation that cannot be guessed."""
    return secrets.token_urlsafe(16)


def with_system(system: str, history: History) -> History:
    """Put the system prompt before the messages, if there is one."""
    return [{"role": "system", "content": system}, *history] if system.strip() else history


def displayed(history: History) -> list[dict[str, object]]:
    """Escape the history for gr.Chatbot, which would render HTML in it."""
    texts = [html.escape(message["content"].translate(SHOWN), False) for message in history]
    return [
        # as an object: Gradio takes indentation out of a plain string
        {**message, "content": [{"type": "text", "text": text}]}
        for message, text in zip(history, texts, strict=True)
    ]


def complaint(message: str) -> gr.Error:
    """Make an error for the visitor; what it quotes is escaped."""
    return gr.Error(html.escape(message), print_exception=False, duration=8)
