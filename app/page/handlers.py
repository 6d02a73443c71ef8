"""Handlers of the page's events: they ask the engine and stream its output to the page."""

import asyncio
import html
import secrets
from collections.abc import AsyncIterator, Sequence

import gradio as gr

from mlx_gateloop.errors import InputError

from ..generation.engine import Engine
from ..generation.run import Run
from ..generation.states import as_messages
from ..generation.words import SHOWN
from ..server import request_values
from .state_view import Changes, shown
from .status import described, status
from .visits import History, Visits

UPDATES_PER_SECOND = 6  # each costs the page a layout; the view asks by itself
NO_VIEW = {"hint": "The view begins with the next answer: send a message, or retry the last one."}


class Handlers:
    """Event handlers over one engine; a visitor's runs are known by the secret of the session.

    `values` are those of the page's controls by name: fields of `Sampling`, max_tokens and record.

    Args:
        engine: Runs the models.
        first_model: The name of the model to start with.
    """

    def __init__(self, engine: Engine, first_model: str) -> None:
        self.engine = engine
        self.first_model = first_model
        self.visits = Visits(engine.limits.conversations)
        self._running: dict[tuple[str, str], list[Run]] = {}  # by session and tab
        self._instead: dict[str, tuple[object, ...]] = {}  # of an answer, by session

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
        """Answer the last message: yields the history twice, the view and the status."""
        try:
            view = Changes()
            self._instead.pop(session, None)
            asked = [(model, with_system(system, history))]
            async for (run,) in self._follow((session, "chat"), asked, values):
                reply = [{"role": "assistant", "content": run.text}] if run.text else []
                messages = [*history, *reply]
                self.visits.put(session, messages, run)
                yield messages, displayed(messages), view(shown(run)), status(run)
            if (instead := self._instead.pop(session, None)) is not None:
                yield instead
        except gr.Error:
            yield history, displayed(history), gr.skip(), status(None)
            raise

    async def complete(
        self, text: str, session: str, model: str, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Continue a text: yields the whole text, the view and the status."""
        if not text.strip():
            raise complaint("Type the beginning of a text first.")
        view = Changes()
        async for (run,) in self._follow((session, "complete"), [(model, text)], values):
            yield text + run.text, view(shown(run)), status(run)

    async def compare(
        self, text: str, session: str, left: str, right: str, as_chat: bool, **values: object
    ) -> AsyncIterator[tuple[object, ...]]:
        """Give one prompt to two models: yields text, view and status of each."""
        if not text.strip():
            raise complaint("Type a prompt first.")
        prompt = [{"role": "user", "content": text}] if as_chat else text
        asked = [(left, prompt), (right, prompt)]
        views = [Changes() for _ in asked]
        async for runs in self._follow((session, "compare"), asked, values):
            both = zip(runs, views, strict=True)
            yield tuple(part for r, view in both for part in (r.text, view(shown(r)), status(r)))

    def undo(
        self, left: History, session: str, model: str, system: str
    ) -> tuple[History, list[dict[str, object]], object, str]:
        """Go back to these messages: returns the history twice, the view then and the status."""
        run = self._answered(with_system(system, left), session, model) if left else None
        self.visits.put(session, left, run)
        return left, displayed(left), self._view(left, run), status(run)

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

    def _view(self, messages: History, run: Run | None) -> object:
        if run is not None and self.engine.recorded.get(run.id) is not None:
            return shown(run)
        return NO_VIEW if messages else None

    async def clear(self, session: str) -> tuple[History, History, None, str]:
        """Begin a new conversation: returns the empty history twice, no view and the status."""
        shows: tuple[History, History, None, str] = ([], [], None, status(None))
        self.replace(session, shows)
        self.visits.put(session, [])
        return shows

    def resume(self, kept: str, session: str) -> tuple[object, ...]:
        """Go on with the chat of a page that was loaded again.

        Args:
            kept: The session that the tab has kept, or nothing.
            session: The page's own.

        Returns:
            The session twice, for the server and for the tab; the history twice, the view and the
            status.
        """
        found = self.visits.resume(kept)
        if found is None:
            return gr.skip(), session, *[gr.skip()] * 4
        messages, run = found
        view = self._view(messages, run)
        return kept, kept, messages, displayed(messages), view, status(run)

    def forget(self, session: str) -> None:
        """End a visitor's runs and drop the conversation's states, with its last page."""
        if not self.visits.leave(session):
            return
        for tab in ("chat", "complete", "compare"):
            self.stop(session, tab)
        self._instead.pop(session, None)
        self.engine.states.forget(session)

    def stop(self, session: str, tab: str) -> None:
        """End a visitor's runs in a tab; what was written stays."""
        runs = self._running.get((session, tab), [])
        for run in runs:
            run.cancel()
        if not runs:  # their models are still fetched
            self._running.pop((session, tab), None)

    def replace(self, session: str, shows: tuple[object, ...]) -> None:
        """End the answer of a visitor's chat, whose last update shows another chat.

        A busy page may show an update of the answer later than what the other event returns.

        Args:
            session: The visitor's.
            shows: The history twice, the view and the status.
        """
        runs = self._running.pop((session, "chat"), [])  # [] shows nothing yet, and will not
        if runs or session in self._instead:
            self._instead[session] = shows
        for run in runs:
            run.cancel()

    async def prepare(self, model: str) -> AsyncIterator[str]:
        """Load a model ahead of its first use: yields the text below the picker."""
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
    ) -> AsyncIterator[list[Run]]:
        """Run prompts; yields their runs some times a second until all are done.

        Leaving early ends them. A tab has one answer at a time: a newer one, even if it is refused
        then, ends an older one, even if its models are still fetched; that is no longer shown.

        Args:
            where: The session and the tab.
            asked: Models and their prompts.
            values: Of the page's controls.
        """
        self.stop(*where)
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
            while True:
                done = all(run.done for run in runs)  # asked first: the last yield shows the end
                if replaced():
                    return
                yield runs
                if done:
                    break
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
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
