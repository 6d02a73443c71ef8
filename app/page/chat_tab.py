"""The chat: messages, their words, the state view beside them, and their events."""

from functools import partial
from typing import Any

import gradio as gr

from . import scripts
from .chat_words import chat_words
from .controls import QUICK, Controls, prompt_box, stream
from .examples import CHAT_EXAMPLES
from .handlers import Handlers, user_error
from .sessions import History
from .side_list import SideList
from .state_picker import state_picker
from .state_view import feed, state_view
from .status import status


def chat_tab(
    page: gr.Blocks, handlers: Handlers, controls: Controls, side: SideList | None
) -> gr.Textbox:
    """Make the tab; returns the box for messages."""
    history = gr.State([])
    kept = gr.Textbox(visible=False)  # the session token that the tab stores
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            chatbot = gr.Chatbot(
                elem_id="chat",
                show_label=False,
                editable="user",
                render_markdown=False,
                allow_tags=False,
                buttons=[],  # they would copy HTML; the answers have their own
                feedback_options=None,
                placeholder="Ask a question. Nothing leaves this machine.",
                examples=[{"text": example} for example in CHAT_EXAMPLES],
            )
            chat_words(handlers.engine, handlers.updates)
            box = prompt_box("chat", "Your message", handlers, controls)
            with gr.Row():
                clear = gr.Button("New conversation", size="sm", elem_id="clear", scale=0)
                more = gr.Button("Continue", size="sm", elem_id="chat-continue", scale=0)
                older, newer = (
                    gr.Button(f"{name} version", size="sm", elem_classes="version-button", scale=0)
                    for name in ("Older", "Newer")
                )
            start = state_picker(handlers, controls.model, "chat", "Speaks as")
            state = gr.HTML(status(None), elem_id="chat-status")
        with gr.Column(scale=6, min_width=320):
            state_view(handlers.engine, handlers.updates, "chat-view")
            view = feed("chat-view")
    who = {"session": controls.session, "model": controls.model, "system": controls.system}
    inputs = {"history": history, **who, **controls.values, "state": start}
    outputs = [history, chatbot, view, state]
    asked = {"text": box, **inputs}
    picked = chatbot.example_select(_picked, None, box, **QUICK)
    offered = chatbot.option_select(_picked, None, box, **QUICK)
    changed = [
        stream(send, handlers.chat, asked, [box, *outputs])
        for send in (box.submit, picked.then, offered.then)
    ]
    changed.append(stream(more.click, handlers.go_on, inputs, outputs))
    for event, change in ((chatbot.retry, _retry), (chatbot.edit, _edit)):
        again = event(change, history, history, **QUICK)
        changed.append(stream(again.then, handlers.answer, inputs, outputs))
    undone = chatbot.undo(_undo, [history, box], [history, box], **QUICK)
    undone.then(handlers.undo, [history, *who.values(), start], outputs, **QUICK)
    for button, step in ((older, -1), (newer, 1)):
        button.click(partial(handlers.turn, step=step), [*who.values(), start], outputs, **QUICK)
    changed += [
        event(handlers.clear, controls.session, outputs, **QUICK)
        for event in (clear.click, chatbot.clear)
    ]
    others = side.connect(list(who.values()), outputs, kept) if side else []
    resumed = page.load(
        handlers.resume,
        [kept, controls.session],
        [controls.session, kept, *outputs],
        js=f"(_, s) => {scripts.call('tab_memory', 'session')}.then((kept) => [kept, s])",
        **QUICK,
    )
    if side:
        for event in (*changed, resumed):
            side.refresh_on(event.then)
    for event in (*others, resumed):
        event.then(None, kept, js=f"(s) => {{ {scripts.call('tab_memory', 'keepSession', 's')} }}")
    return box


def _picked(event: gr.SelectData) -> str:
    """Return the text of an example, or of an offered question."""
    return str(event.value["text"] if isinstance(event.value, dict) else event.value)


def _retry(history: History, event: gr.RetryData) -> History:
    return history[: _index(event) + 1]


def _edit(history: History, event: gr.EditData) -> History:
    return [*history[: _index(event)], {"role": "user", "content": str(event.value)}]


def _undo(history: History, typed: str, event: gr.UndoData) -> tuple[Any, ...]:
    index = _index(event)
    return history[:index], typed or (history[index]["content"] if index < len(history) else "")


def _index(event: gr.RetryData | gr.EditData | gr.UndoData) -> int:
    """Check the message's number, which comes from the page."""
    index = getattr(event, "index", None)
    first = index[0] if isinstance(index, tuple | list) and index else index
    if type(first) is not int or first < 0:
        raise user_error("Choose a message.")
    return first
