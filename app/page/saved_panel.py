"""Controls for saved conversations."""

import asyncio
import html
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..conversations.folder import ConversationFolder
from .events import PRIVATE
from .handlers import NO_VIEW, escape_history, user_error, with_system
from .sessions import History, Sessions
from .status import status


class SavedPanel:
    """A panel that saves the chat under a name, and opens a saved one."""

    def __init__(self, folder: ConversationFolder, sessions: Sessions) -> None:
        self._folder, self._sessions = folder, sessions
        with gr.Accordion("Saved conversations", open=False):
            self._name = gr.Textbox(label="Name", max_length=60, elem_id="save-name")
            self._save = gr.Button("Save this conversation", size="sm", elem_id="save")
            self._names = gr.Dropdown([], label="Saved", elem_id="saved")
            self._open = gr.Button("Open", size="sm", elem_id="open")

    def connect(
        self, who: list[Any], outputs: list[Any], replace: Callable[..., None], kept: gr.Textbox
    ) -> Any:
        """Connect the buttons; return the event after a conversation was opened.

        `who` has the components of session, model and system prompt; `outputs` those of history,
        chat, view and status. `replace` cancels a session's answer and replaces its messages.
        """
        inputs = [self._name, *who, outputs[0]]
        self._save.click(self.save, inputs, self._names, **PRIVATE)
        self._names.focus(self.choices, self._names, self._names, **PRIVATE)

        async def open_instead(name: str, session: str) -> tuple[Any, ...]:
            opened: tuple[Any, ...] = await asyncio.to_thread(self.open, name)
            replace(session, opened[-len(outputs)])
            return opened

        return self._open.click(
            open_instead, [self._names, who[0]], [kept, *who, *outputs], **PRIVATE
        )

    def choices(self, name: str | None) -> Any:
        return gr.update(choices=self._folder.names(), value=name)

    def save(self, name: str, session: str, model: str, system: str, messages: History) -> Any:
        try:
            has_states = self._folder.save(name, session, model, with_system(system, messages))
        except InputError as error:
            raise user_error(str(error)) from None
        left_out = "" if has_states else " The state is too large to save."
        saved = f"Saved {len(messages)} messages as {name!r} in {self._where()}.{left_out}"
        gr.Info(html.escape(saved))
        return self.choices(name)

    def _where(self) -> str:
        """Name the folder without other paths of this machine."""
        folder, home = self._folder.folder.absolute(), Path(os.path.expanduser("~"))  # noqa: PTH111
        return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else folder.name

    def open(self, name: str) -> tuple[Any, ...]:
        try:
            session, model, messages = self._folder.open(name)
        except InputError as error:
            raise user_error(str(error)) from None
        system = "".join(m["content"] for m in messages if m["role"] == "system")
        messages = [m for m in messages if m["role"] != "system"]
        self._sessions.put(session, messages)
        outputs = (messages, escape_history(messages), NO_VIEW, status(None))
        return session, session, model, system, *outputs
