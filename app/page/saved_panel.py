"""The controls for saved conversations."""

from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..conversations.folder import ConversationFolder
from .events import PRIVATE, QUICK
from .handlers import History, complaint, displayed, status, with_system


class SavedPanel:
    """Saves a chat under a name, and opens a saved one.

    Args:
        folder: Holds the conversations.
    """

    def __init__(self, folder: ConversationFolder) -> None:
        self._folder = folder
        with gr.Accordion("Saved conversations", open=False):
            self._name = gr.Textbox(label="Name", max_length=60, elem_id="save-name")
            self._save = gr.Button("Save this conversation", size="sm", elem_id="save")
            self._names = gr.Dropdown([], label="Saved", elem_id="saved")
            self._open = gr.Button("Go on from it", size="sm", elem_id="open")

    def connect(self, who: list[Any], shows: list[Any], running: list[Any]) -> None:
        """Connect the buttons.

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
        return gr.update(choices=self._folder.names(), value=name)

    def save(self, name: str, session: str, model: str, system: str, messages: History) -> Any:
        try:
            self._folder.save(name, session, model, with_system(system, messages))
        except InputError as error:
            raise complaint(str(error)) from None
        return self.choices(name)

    def open(self, name: str) -> tuple[Any, ...]:
        try:
            session, model, messages = self._folder.open(name)
        except InputError as error:
            raise complaint(str(error)) from None
        system = "".join(m["content"] for m in messages if m["role"] == "system")
        messages = [m for m in messages if m["role"] != "system"]
        return session, model, system, messages, displayed(messages), None, status(None)
