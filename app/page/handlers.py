"""Event handlers: they submit requests to the engine and stream its output to the page."""

import asyncio
import html
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..conversations.folder import ConversationFolder
from ..generation.engine import Engine
from ..generation.prefix_cache import as_messages
from ..generation.run import Run
from ..generation.state_files import given_file
from ..server import request_values
from .examples import offers
from .keeper import Keeper, with_system
from .markdown import escape_history
from .sessions import Chat, History, Sessions
from .status import describe_model, status
from .updates import Updates, common_prefix, stream_updates, view_state

Stream = AsyncIterator[tuple[object, ...]]  # of values for the components of a tab
LEAVING_SECONDS = 5
NOT_SAMPLING = ("max_tokens", "record", "stop", "lookup", "state")
NO_VIEW: dict[str, object] = {
    "hint": "The view starts with the next answer: send a message, or retry the last answer."
}


class Handlers:
    """Event handlers on one engine; a secret session token identifies a user.

    `values` come from the controls by name: those of `Sampling`, max_tokens, stop and record.
    """

    def __init__(
        self, engine: Engine, first_model: str, folder: ConversationFolder | None = None
    ) -> None:
        self.engine = engine
        self.first_model = first_model
        self.sessions = Sessions(engine.limits.conversations)
        self.keeper = Keeper(folder, self.sessions)
        self.updates = Updates(engine.recorded)
        self._running: dict[tuple[str, str], list[Run]] = {}  # by session and tab

    async def chat(
        self, text: str, history: History, session: str, model: str, system: str, **values: object
    ) -> Stream:
        """Answer a message; yield the box with a rejected one, history twice, view, status."""
        shown, earlier = self.sessions.get(session)
        if not text.strip():
            yield *[gr.skip()] * 4, self.status(session, earlier)
            raise user_error("Type a message first.")
        asked = [*history, {"role": "user", "content": text}]
        box: object = ""
        try:
            async for update in self.answer(asked, session, model, system, **values):
                yield box, *update
                box = gr.skip()  # keep what the user types meanwhile
        except gr.Error:
            if len(self.sessions.get(session)[0]) > len(asked):  # it has a part of the answer
                raise
            cut = earlier if history == shown else None  # it can still be continued
            self.sessions.put(session, history, cut)
            yield text, history, escape_history(history), gr.skip(), self.status(session, cut)
            raise

    async def answer(
        self, history: History, session: str, model: str, system: str, **values: object
    ) -> Stream:
        """Answer the last message, or continue the last answer.

        Yields the history twice, the view and the status. The final update repeats a chat that
        replaced this one meanwhile: a busy page may show an older update after the new chat.
        """
        if not history:
            raise user_error("Type a message first.")
        answering, (shown_before, earlier) = None, self.sessions.get(session)
        self.sessions.begin(session, history)
        chat = self.sessions.chat(session)
        kept: asyncio.Future[None] | None = None
        try:
            asked = [(model, with_system(system, history))]
            before = history[:-1] if history[-1]["role"] == "assistant" else history
            async for ((run, view),) in self._stream((session, "chat"), asked, values, earlier):
                if kept is None and run.pieces:  # the engine reads the question
                    kept = asyncio.ensure_future(self.keeper.keep(chat, session, model, system))
                reply = [{"role": "assistant", "content": run.text}]
                messages = [*before, *(reply if run.text else history[len(before) :])]
                self.sessions.put(session, messages, run)
                answering = run
                shown = escape_history(messages, offers(run, self.engine.models))
                yield messages, shown, view, self.status(session, run)
            messages, current = self.sessions.get(session)
            if answering not in (None, current) and (session, "chat") not in self._running:
                yield self._outputs(session, messages, current)
        except gr.Error:
            cut = earlier if answering is None and history == shown_before else None
            left = history if answering is None else self.sessions.get(session)[0]
            if answering is not None or cut is not None:
                self.sessions.put(session, left, cut)
            yield left, escape_history(left), gr.skip(), self.status(session, cut)
            raise
        finally:
            if kept is not None:
                await kept
                await self.keeper.keep(chat, session, model, system)

    async def go_on(self, history: History, session: str, **values: object) -> Stream:
        """Continue the last answer, as if its limit had been higher: see `answer`."""
        _, run = self.sessions.get(session)
        if run is not None and run.sampling is not None:
            values["seed"] = run.sampling.seed
        async for update in self.answer(history, session, **values):  # type: ignore[arg-type]
            yield update

    async def complete(self, text: str, session: str, model: str, **values: object) -> Stream:
        """Continue a text, after a state if given: yield it, the view and the status."""
        if not (text if values.get("state") else text.strip()):
            raise user_error("Type the beginning of a text first.")
        async for ((run, view),) in self._stream((session, "complete"), [(model, text)], values):
            yield text + run.text, view, status(run)

    async def compare(
        self, text: str, session: str, left: str, right: str, as_chat: bool, **values: object
    ) -> Stream:
        """Run two models on one prompt: yield the text, view and status of each."""
        if not text.strip():
            raise user_error("Type a prompt first.")
        prompt = [{"role": "user", "content": text}] if as_chat else text
        asked = [(left, prompt), (right, prompt)]
        async for both in self._stream((session, "compare"), asked, values):
            yield tuple(part for run, view in both for part in (run.text, view, status(run)))

    def undo(
        self, left: History, session: str, model: str, system: str, state: object = None
    ) -> tuple[object, ...]:
        """Go back to these messages: return the history twice, their view and the status."""
        _, earlier = self.sessions.get(session)
        self.cancel(session)
        self.sessions.begin(session, left)
        return self._show(session, model, system, state, earlier)

    def turn(
        self, session: str, model: str, system: str, state: object = None, *, step: int
    ) -> tuple[object, ...]:
        """Show the next branch, or the one before: see `undo`."""
        _, earlier = self.sessions.get(session)
        self.cancel(session)
        self.sessions.turn(session, step)
        return self._show(session, model, system, state, earlier)

    def _show(
        self, session: str, model: str, system: str, state: object, earlier: Run | None
    ) -> tuple[object, ...]:
        left, _ = self.sessions.get(session)
        answered = left and left[-1]["role"] == "assistant"
        run = self._answered(with_system(system, left), session, model, state) if answered else None
        self.sessions.put(session, left, run)
        return self._outputs(session, left, run, earlier)

    def _answered(self, messages: History, session: str, model: str, given: object) -> Run | None:
        """Find the run that generated the last of these messages."""
        try:
            fingerprint = self.engine.models.fingerprint(model)
            if file := given_file(given, self.engine.models):
                fingerprint += file.key
        except InputError:  # the user has chosen another model
            return None
        pairs = as_messages(messages, complete=False)
        states = self.engine.prefix_cache.prefixes(session, fingerprint, pairs)
        made = states[-1].run if states and states[-1].messages == pairs else None
        return made() if made else None

    def status(self, session: str, run: Run | None) -> str:
        chat = self.sessions.chat(session)
        return status(run, chat.at, len(chat.branches), chat.problem)

    def _outputs(
        self, session: str, messages: History, run: Run | None, earlier: Run | None = None
    ) -> tuple[object, ...]:
        """Return the history twice, the view and the status."""
        view: dict[str, object] | None = NO_VIEW if messages else None
        if run is not None and self.engine.recorded.get(run.id) is not None:
            view = view_state(run)
            if view and "hint" not in view:
                view |= common_prefix(run, earlier)
        offered = offers(run, self.engine.models) if run is not None else ()
        return messages, escape_history(messages, offered), view, self.status(session, run)

    async def clear(self, session: str) -> tuple[object, ...]:
        """Start a new conversation, and return its outputs."""
        self.cancel(session)
        self.sessions.start(session, Chat())
        return self._outputs(session, [], None)

    def cancel(self, session: str) -> None:
        """Cancel the running answer of a chat, which another one replaces."""
        for run in self._running.pop((session, "chat"), []):
            run.cancel()

    async def resume(self, kept: str, session: str) -> tuple[object, ...]:
        """Continue the chat of a reloaded page; the old one's answer ends within a moment.

        Returns the session twice, for the server and the tab, and the chat's outputs.
        """
        if not self.sessions.resume(kept):
            return gr.skip(), session, *[gr.skip()] * 4
        _, run = self.sessions.get(kept)
        end = time.monotonic() + LEAVING_SECONDS
        while run is not None and not run.done and time.monotonic() < end:
            await asyncio.sleep(0.05)
        if run is not None and not (run.done or run.stopped):  # a copy of a tab that is open
            self.forget(kept)
            return gr.skip(), session, *[gr.skip()] * 4
        return kept, kept, *self._outputs(kept, *self.sessions.get(kept))

    def forget(self, session: str) -> None:
        """Cancel a session's runs and drop its cached states, unless another page continues it."""
        if not self.sessions.close(session):
            return
        for tab in ("chat", "complete", "compare"):
            self.stop(session, tab)
        self.engine.prefix_cache.forget(session)

    def stop(self, session: str, tab: str) -> None:
        """Cancel a session's runs in a tab, and keep their text."""
        runs = self._running.get((session, tab), [])
        for run in runs:
            run.cancel()
        if not runs:  # still downloading models
            self._running.pop((session, tab), None)

    async def prepare(self, model: str) -> tuple[str, str]:
        """Load a model before its first use; return the text below the picker, and its card."""
        try:
            await self.engine.fetch(model)
            info = self.engine.models.info(model)
            await self.engine.enqueue(model, None).ended()
        except InputError as error:
            raise user_error(str(error)) from None
        return describe_model(info), self.engine.models.card(model)

    def _submit(
        self, model: str, prompt: str | History, where: tuple[str, str], values: dict[str, object]
    ) -> Run:
        session, tab = where
        sampling = {k: v for k, v in values.items() if k not in NOT_SAMPLING}
        stop = request_values.check_type("stop", values.get("stop", ""), str)
        run = self.engine.submit(
            model, prompt, request_values.sampling(**sampling),
            request_values.integer("max_tokens", values["max_tokens"]), bool(values["record"]),
            session if tab == "chat" else None, (stop,) if stop else (), bool(values["lookup"]),
            given_file(values.get("state"), self.engine.models),
        )  # fmt: skip
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        run.prompt = next((m["content"] for m in reversed(asked) if m["role"] == "user"), "")
        return run

    async def _stream(
        self,
        where: tuple[str, str],
        asked: Sequence[tuple[str, str | History]],
        values: dict[str, object],
        earlier: Run | None = None,
    ) -> AsyncIterator[list[tuple[Run, Any]]]:
        """Run prompts; yield their runs and views several times a second until all are done.

        Closing the generator cancels them. A tab has one answer at a time: a newer request, even a
        rejected one, cancels the older one, even while that downloads its model.
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
            async for update in stream_updates(self.updates, runs, earlier, where[1] == "chat"):
                if replaced():
                    return
                yield update
            for run in runs:
                if run.error:
                    raise user_error(run.error)
        except InputError as error:
            if not replaced():
                raise user_error(str(error)) from None
        finally:
            for run in runs:
                run.cancel()
            if not replaced():
                self._running.pop(where, None)  # another thread may have removed it


def new_session() -> str:
    """Return a session token that nobody can guess."""
    return secrets.token_urlsafe(16)


def user_error(message: str) -> gr.Error:
    """Make an error for the user, with HTML escaped."""
    return gr.Error(html.escape(message), print_exception=False, duration=8)
