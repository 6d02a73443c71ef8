"""The list of conversations at the side: search, open, rename, delete, export, import."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from mlx_gateloop.errors import InputError

from ..conversations.folder import ConversationFolder
from . import scripts
from .controls import PRIVATE, QUICK
from .handlers import NO_VIEW, Handlers, new_session
from .keeper import imported, without_system
from .markdown import escape_history
from .sessions import Chat, History
from .status import note

SAVE = f"(file) => {{ file && {scripts.call('share', 'save', '...file')} }}"
PICK = f"(_, s, m) => {scripts.call('share', 'pickText')}.then((file) => [file, s, m])"
Opened = tuple[str, str, str, History]  # session, model, system prompt, messages


class SideList:
    """The list, and the title of the conversation that is shown."""

    def __init__(self, handlers: Handlers, folder: ConversationFolder) -> None:
        self._handlers, self._keeper, self._folder = handlers, handlers.keeper, folder
        self.search = gr.Textbox(label="Search conversations", elem_id="search")
        self._list = gr.Dataset(
            components=[gr.Textbox(visible=False)],
            samples=[],
            layout="table",
            headers=["Conversations"],
            label="Conversations",
            show_label=False,
            samples_per_page=10,
            elem_id="saved",
        )
        self._title = gr.Textbox(label="Title of this conversation", elem_id="save-name")
        with gr.Row():
            self._delete = gr.Button("Delete", size="sm", min_width=60, elem_id="delete")
            self._undelete = gr.Button("Undo", size="sm", min_width=60, elem_id="undelete")
        with gr.Row():
            self._exports = {
                kind: gr.Button(name, size="sm", min_width=60, elem_id=f"export-{kind}")
                for kind, name in (("md", "Export .md"), ("json", "Export .json"))
            }
            self._import = gr.Button("Import", size="sm", min_width=60, elem_id="import")
        self._note = gr.HTML("", elem_id="kept-note")
        self._deleted = gr.State("")
        self._file = gr.JSON(visible=False)

    def connect(self, who: list[Any], outputs: list[Any], kept: gr.Textbox) -> list[Any]:
        """Connect the controls; return the events after which another conversation is shown.

        `who` has the components of session, model and system prompt; `outputs` those of history,
        chat, view and status.
        """
        session, shown = who[0], [kept, *who, *outputs]
        side = [self._list, self._title, self._note]
        self._side, self._session, self._status = side, session, outputs[-1]
        opened = self._list.click(self.open, [self._list, session], [*shown, self._note], **QUICK)
        renamed = [self._title.submit, self._title.blur]
        gr.on(renamed, self._rename, [self._title, self.search, session], side, **QUICK)
        removed = self._delete.click(
            self._remove, [self.search, session], [self._deleted, *outputs, *side], **QUICK
        )
        restored = self._undelete.click(
            self._restore, [self._deleted, session], [*shown, self._note], **QUICK
        )
        for kind, button in self._exports.items():
            export = partial(self._export, kind=kind)
            exported = button.click(export, [session, who[2]], [self._file, self._note], **QUICK)
            exported.then(None, self._file, js=SAVE, **PRIVATE)
        taken = self._import.click(
            self._take, [self._file, *who[:2]], [*shown, self._note], js=PICK, **QUICK
        )
        for event in (self.search.change, opened.then, restored.then, taken.then):
            self.refresh_on(event)
        return [opened, removed, restored, taken]

    def refresh_on(self, event: Callable[..., Any]) -> None:
        """Show the list, the title and a problem of saving at a Gradio event."""
        event(self._refresh, [self.search, self._session], [*self._side[:2], self._status], **QUICK)

    def _refresh(self, search: str, session: str) -> tuple[Any, ...]:
        chat = self._keeper.sessions.chat(session)
        found = gr.Dataset(samples=[[name] for name in self._folder.names(search)])
        state = self._handlers.status(session, chat.shown()[1]) if chat.problem else gr.skip()
        return found, chat.name, state

    def _export(self, session: str, system: str, kind: str) -> tuple[Any, str]:
        if not self._keeper.sessions.get(session)[0]:
            return None, note("There is nothing to export yet.")
        return self._keeper.export(session, system, kind), ""

    def open(self, chosen: list[str], session: str) -> tuple[Any, ...]:
        chat = self._keeper.sessions.chat(session)
        _, run = chat.shown()
        if chosen[0] == chat.name and run is not None and not run.done:
            return (gr.skip(),) * 9  # its answer goes on
        return self._shown(lambda: self._keeper.open(chosen[0]), session)

    def _shown(self, open: Callable[[], Opened], old: str) -> tuple[Any, ...]:
        """Return what shows a conversation instead of the session's, or why it cannot be opened."""
        try:
            session, model, system, messages = open()
        except InputError as error:
            return *[gr.skip()] * 8, note(str(error))
        self._handlers.cancel(old)
        shown = messages, escape_history(messages), NO_VIEW, self._handlers.status(session, None)
        return session, session, model, system, *shown, ""

    def _rename(self, title: str, search: str, session: str) -> tuple[Any, ...]:
        try:
            is_new = self._keeper.rename(session, title)
        except InputError as error:
            return gr.skip(), gr.skip(), note(str(error))  # the box keeps what was typed
        found, old, _ = self._refresh(search, session)
        title = gr.skip() if title.strip() else old  # its box may show another conversation by now
        return found, title, "" if is_new else gr.skip()  # the note may offer to undo

    async def _remove(self, search: str, session: str) -> tuple[Any, ...]:
        chat = self._keeper.sessions.chat(session)
        name = chat.name
        if not name or chat.deleted:
            return *[gr.skip()] * 7, note("This conversation is not saved.")
        try:
            deleted = await asyncio.to_thread(self._keeper.delete, chat)
        except InputError as error:
            return *[gr.skip()] * 7, note(str(error))
        emptied = await self._handlers.clear(session)
        found, title, _ = self._refresh(search, session)
        return deleted, *emptied, found, title, note(f"Deleted: {name}.", "undoable")

    def _restore(self, name: str, session: str) -> tuple[Any, ...]:
        return self._shown(lambda: self._keeper.open(self._folder.restore(name)), session)

    def _take(self, file: object, session: str, model: str) -> tuple[Any, ...]:
        def take() -> Opened:
            system, messages = without_system(imported(file))
            new = new_session()
            chat = Chat([messages])
            self._keeper.sessions.start(new, chat)
            self._keeper.save(chat, new, model, system)
            return new, model, system, messages

        return self._shown(take, session)
