"""The controls for conversations in files."""

from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..conversations.folder import Saved
from .events import PRIVATE, QUICK
from .handlers import History, complaint, displayed, status, with_system


class Keep:
    """Saves a chat under a name, and goes on from a saved one.

    Args:
        saved: Holds them.
    """

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        with gr.Accordion("Saved conversations", open=False):
            self._name = gr.Textbox(label="Name", max_length=60, elem_id="save-name")
            self._save = gr.Button("Save this conversation", size="sm", elem_id="save")
            self._names = gr.Dropdown([], label="Saved", elem_id="saved")
            self._open = gr.Button("Go on from it", size="sm", elem_id="open")

    def connect(self, who: list[Any], shows: list[Any], running: list[Any]) -> None:
        """Let the buttons work.

        Args:
            who: The components of the session, the model and the system prompt.
            shows: Those of the history, the chat, the view and the status.
            running: Events that end when another conversation is opened.
        """
        inputs = [self._name, *who, shows[0]]
        self._save.click(self.save, inputs, self._names, **PRIVATE)
        self._names.focus(self.choices, self._names, self._names, **PRIVATE)
        cancelled = self._open.click(None, None, None, cancels=running, **QUICK)
        cancelled.then(self.open, self._names, [*who, *shows], **PRIVATE)

    def choices(self, name: str | None) -> Any:
        return gr.update(choices=self._saved.names(), value=name)

    def save(self, name: str, session: str, model: str, system: str, messages: History) -> Any:
        try:
            self._saved.save(name, session, model, with_system(system, messages))
        except InputError as error:
            raise complaint(str(error)) from None
        return self.choices(name)

    def open(self, name: str) -> tuple[Any, ...]:
        try:
            session, model, messages = self._saved.open(name)
        except InputError as error:
            raise complaint(str(error)) from None
        system = "".join(m["content"] for m in messages if m["role"] == "system")
        messages = [m for m in messages if m["role"] != "system"]
        return session, model, system, messages, displayed(messages), None, status(None)
