"""Layout of the page: tabs, controls and their events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ..api import add_endpoint
from ..conversations.folder import ConversationFolder
from ..generation.run import Limits
from ..server.blocks import Page
from . import scripts, tour
from .chat_words import chat_words
from .events import PRIVATE, QUICK, stream
from .examples import CHAT_EXAMPLES, TEXT_EXAMPLES
from .handlers import Handlers, new_session, user_error
from .lab import memory_lab
from .saved_panel import SavedPanel
from .sessions import History
from .state_view import feed, state_view
from .status import describe_model, status

DARK = f"() => {scripts.call('tab_memory', 'toggleDark')}"
CHAT = "document.querySelector('#chat')"
SIDEBAR = "() => document.querySelector('#settings .toggle-button').click()"


@dataclass
class Controls:
    """Components that all tabs share; `values` has the other controls by `Handlers`' names."""

    session: gr.State
    model: gr.Dropdown
    system: gr.Textbox
    values: dict[str, Component]


def build(handlers: Handlers, folder: ConversationFolder) -> gr.Blocks:
    """Build the page."""
    page = Page(
        title="GateLoop", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)
    )
    with page:
        session = gr.State(time_to_live=6 * 3600, delete_callback=handlers.forget)
        session.value = new_session  # a value in the constructor would arrive after the page
        with gr.Row(elem_id="head"):
            gr.HTML(
                "<h1>GateLoop</h1><p>A chat that outputs what the model remembers and forgets</p>",
                elem_id="title",
            )
            model = _picker(handlers)
            # page.css outputs icons; the names are for screen readers
            buttons = (
                ("Guided tour", "tour-button", f"() => {tour.OPEN}"),
                ("Settings", "settings-button", SIDEBAR),
                ("Light or dark", "dark", DARK),
            )
            for label, name, script in buttons:
                button = gr.Button(label, elem_id=name, size="sm", min_width=44, scale=0)
                button.click(None, js=script, **PRIVATE)
        with gr.Sidebar(label="Settings", open=False, elem_id="settings", width=300):
            controls = _controls(handlers.engine.limits, session, model)
            saved_panel = SavedPanel(folder, handlers.sessions)
        with gr.Tabs(selected=_first_tab(handlers), elem_id="tabs"):
            with gr.Tab("Chat", id="chat"):
                _chat(page, handlers, controls, saved_panel)
            with gr.Tab("Completion", id="completion"):
                _completion(handlers, controls)
            with gr.Tab("Side by side"):
                _side_by_side(handlers, controls)
            with gr.Tab("Memory lab"):
                memory_lab()
            with gr.Tab("About"):
                gr.Markdown((scripts.STATIC / "about.md").read_text("utf-8"), elem_id="about")
        unescape = scripts.call("edit_box", "unescapeEditBoxes", CHAT)
        show_theme = scripts.call("tab_memory", "showTheme")
        tour.dialog()
        page.load(None, js=f"() => {{ {unescape}; {show_theme}; {tour.START} }}", **PRIVATE)
        _keep_settings(page, controls)
        add_endpoint(handlers.engine, handlers.first_model)
    return page


def _first_tab(handlers: Handlers) -> str:
    models, name = handlers.engine.models, handlers.first_model
    return "chat" if not models.is_local(name) or models.info(name).chats else "completion"


def _picker(handlers: Handlers) -> gr.Dropdown:
    models = handlers.engine.models
    names = models.names()
    with gr.Column(min_width=240, elem_id="picker"):
        model = gr.Dropdown(
            names,
            value=handlers.first_model,
            show_label=False,
            container=False,
            allow_custom_value=True,  # also paths in a models folder, and hub ids
            elem_id="model",
        )
        about = gr.HTML(describe_model(models.info(handlers.first_model)), elem_id="model-about")
    model.change(None, None, about, js="() => 'loading'", **PRIVATE)
    prepared = model.change(handlers.prepare, model, about, **QUICK)
    prepared.failure(None, None, about, js="() => 'not loaded'", **PRIVATE)
    return model


def _controls(limits: Limits, session: gr.State, model: gr.Dropdown) -> Controls:
    system = gr.Textbox(label="System prompt", lines=2, elem_id="system")
    limit = limits.max_tokens
    values: dict[str, Component] = {
        "temperature": gr.Slider(0, 2, 0.7, step=0.05, label="Temperature", elem_id="temperature"),
        "top_p": gr.Slider(0.01, 1, 0.95, step=0.01, label="Top-p"),
        "top_k": gr.Slider(0, 200, 0, step=1, label="Top-k (0: off)"),
        "min_p": gr.Slider(0, 1, 0.05, step=0.01, label="Min-p"),
        "repetition_penalty": gr.Slider(1, 2, 1, step=0.01, label="Repetition penalty"),
        "max_tokens": gr.Slider(1, limit, 256, step=1, label="Max tokens", elem_id="max-tokens"),
        "seed": gr.Number(-1, precision=0, label="Seed (-1: random)", elem_id="seed"),
        "record": gr.Checkbox(
            True, label="Live view", info="Answers are faster without it", elem_id="live"
        ),
    }
    return Controls(session, model, system, values)


def _keep_settings(page: gr.Blocks, controls: Controls) -> None:
    """Keep the settings of a tab across reloads."""
    settings: list[Any] = [controls.model, controls.system, *controls.values.values()]
    keep, kept = (scripts.call("tab_memory", f, "...v") for f in ("keepSettings", "settings"))
    changes = [setting.change for setting in settings]
    gr.on(changes, None, settings, None, js=f"(...v) => {{ {keep} }}", **PRIVATE)
    page.load(None, settings, settings, js=f"(...v) => {kept}", **PRIVATE)


def _chat(page: gr.Blocks, handlers: Handlers, controls: Controls, saved_panel: SavedPanel) -> None:
    history = gr.State([])
    kept = gr.Textbox(visible=False)  # the session token that the tab stores
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            chatbot = gr.Chatbot(
                height=430,
                elem_id="chat",
                show_label=False,
                editable="user",
                render_markdown=False,
                allow_tags=False,
                buttons=[],  # they would copy escaped text; selecting copies plain text
                feedback_options=None,
                placeholder="Ask something. Nothing leaves this machine.",
            )
            chat_words(handlers.engine, handlers.updates)
            box, stop = _prompt_box("chat", "Your message")
            gr.Examples([[example] for example in CHAT_EXAMPLES], box, label="Try")
            clear = gr.Button("New conversation", size="sm", elem_id="clear")
            state = gr.HTML(status(None), elem_id="chat-status")
        with gr.Column(scale=6, min_width=320):
            state_view(handlers.updates, "chat-view")
            view = feed("chat-view")
    who = {"session": controls.session, "model": controls.model, "system": controls.system}
    inputs = {"history": history, **who, **controls.values}
    outputs = [history, chatbot, view, state]
    stream(box.submit, handlers.chat, {"text": box, **inputs}, [box, *outputs])
    for event, change in ((chatbot.retry, _retry), (chatbot.edit, _edit)):
        changed = event(change, history, history, **QUICK)
        stream(changed.then, handlers.answer, inputs, outputs)
    undone = chatbot.undo(_undo, history, [history, box], **QUICK)
    undone.then(handlers.undo, [history, *who.values()], outputs, **QUICK)
    for event in (clear.click, chatbot.clear):
        event(handlers.clear, controls.session, outputs, **QUICK)
    _connect_stop(stop, handlers, "chat", controls)
    opened = saved_panel.connect(list(who.values()), outputs, handlers.replace, kept)
    resumed = page.load(
        handlers.resume,
        [kept, controls.session],
        [controls.session, kept, *outputs],
        js=f"(_, s) => {scripts.call('tab_memory', 'session')}.then((kept) => [kept, s])",
        **QUICK,
    )
    for event in (opened, resumed):
        event.then(None, kept, js=f"(s) => {{ {scripts.call('tab_memory', 'keepSession', 's')} }}")


def _connect_stop(button: gr.Button, handlers: Handlers, tab: str, controls: Controls) -> None:
    async def stop(session: str) -> None:  # in the event loop, like the handlers
        handlers.stop(session, tab)

    button.click(stop, controls.session, **QUICK)


def _retry(history: History, event: gr.RetryData) -> History:
    return history[: _index(event) + 1]


def _edit(history: History, event: gr.EditData) -> History:
    return [*history[: _index(event)], {"role": "user", "content": str(event.value)}]


def _undo(history: History, event: gr.UndoData) -> tuple[Any, ...]:
    index = _index(event)
    return history[:index], history[index]["content"] if index < len(history) else ""


def _index(event: gr.RetryData | gr.EditData | gr.UndoData) -> int:
    """Check the message's number, which comes from the page."""
    index = getattr(event, "index", None)
    first = index[0] if isinstance(index, tuple | list) and index else index
    if type(first) is not int or first < 0:
        raise user_error("Choose a message.")
    return first


def _completion(handlers: Handlers, controls: Controls) -> None:
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            box, stop = _prompt_box("complete", "The beginning of a text", lines=4)
            texts = [[example] for example in TEXT_EXAMPLES.values()]
            gr.Examples(texts, box, label="Try", example_labels=list(TEXT_EXAMPLES))
            state = gr.HTML(status(None), elem_id="complete-status")
            output = gr.Textbox(
                label="The text", lines=12, interactive=False, elem_id="complete-text"
            )
        with gr.Column(scale=6, min_width=320):
            state_view(handlers.updates, "complete-view")
            view = feed("complete-view")
    who = {"session": controls.session, "model": controls.model}
    inputs = {"text": box, **who, **controls.values}
    stream(box.submit, handlers.complete, inputs, [output, view, state])
    _connect_stop(stop, handlers, "complete", controls)
    textarea = "document.querySelector('#complete-text textarea')"
    follow = scripts.call("follow_end", "followEnd", textarea, "v")
    output.change(None, output, None, js=f"(v) => {{ {follow} }}", **PRIVATE)


def _side_by_side(handlers: Handlers, controls: Controls) -> None:
    names = handlers.engine.models.names()
    box, stop = _prompt_box("compare", "One prompt for both models")
    as_chat = gr.Checkbox(True, label="As a chat message", container=False)
    models, outputs = [], []
    with gr.Row(equal_height=False):
        for side, name in zip(("left", "right"), pair(names), strict=True):
            with gr.Column(min_width=320):
                models.append(gr.Dropdown(names, value=name, label=f"Model on the {side}"))
                output = gr.Textbox(
                    show_label=False, lines=5, interactive=False, elem_id=f"{side}-text"
                )
                state = gr.HTML(status(None), elem_id=f"{side}-status")
                state_view(handlers.updates, f"{side}-view", linked="side by side")
                outputs += [output, feed(f"{side}-view"), state]
    left, right = models
    inputs = {"session": controls.session, "left": left, "right": right, "as_chat": as_chat}
    stream(box.submit, handlers.compare, {"text": box, **inputs, **controls.values}, outputs)
    _connect_stop(stop, handlers, "compare", controls)


def pair(names: Sequence[str]) -> tuple[str, str]:
    """Choose two models: the first with a variant of fixed transitions, or the first two."""
    for name in names:
        if f"{name}-fixed" in names:
            return name, f"{name}-fixed"
    return names[0], names[1 % len(names)]


def _prompt_box(name: str, placeholder: str, lines: int = 1) -> tuple[gr.Textbox, gr.Button]:
    with gr.Row(elem_classes="prompt-row"):
        box = gr.Textbox(
            elem_id=f"{name}-box",
            show_label=False,
            placeholder=f"{placeholder} (Shift+Enter: send)" if lines > 1 else placeholder,
            lines=lines,
            submit_btn="Send",  # the handler rejects a text that is too long
            container=False,
            scale=5,
        )
        stop = gr.Button("Stop", elem_id=f"{name}-stop", size="sm", scale=0, min_width=70)
    return box, stop
