"""Layout of the page: tabs, controls and their events."""

from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from mlx_gateloop.watch.lab import accuracies, lab_data
from mlx_gateloop.watch.sharing import PARTS

from ..api import add_endpoint
from ..server.log import Page
from . import scripts
from .chat_tab import chat_tab
from .controls import PRIVATE, Controls, keep_settings, picker, prompt_box, settings, stream
from .examples import TEXT_EXAMPLES
from .handlers import Handlers, new_session
from .side_list import SideList
from .state_picker import state_picker
from .state_view import feed, state_view
from .status import status

CHAT = "document.querySelector('#chat')"
LAB = Path(__file__).parents[1] / "embedded_models" / "lab"
TOGGLE = "() => document.querySelector('{} .toggle-button').click()"


def build(handlers: Handlers) -> gr.Blocks:
    page = Page(
        title="GateLoop", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)
    )
    with page:
        # This time counts from the last event that set the state, not from its last use.
        session = gr.State(time_to_live=7 * 24 * 3600, delete_callback=handlers.forget)
        session.value = new_session  # a value in the constructor would arrive after the page
        with gr.Row(elem_id="head"):
            if (folder := handlers.keeper.folder) is not None:
                _button("Conversations", "list-button", TOGGLE.format("#conversations"))
            gr.HTML(
                "<h1>GateLoop</h1><p>A chat that shows what the model remembers and forgets</p>",
                elem_id="title",
            )
            model = picker(handlers)
            _button("Guided tour", "tour-button", f"() => {scripts.call('tour', 'open')}")
            _button("Settings", "settings-button", TOGGLE.format("#settings"))
            _button("Light or dark", "dark", f"() => {scripts.call('tab_memory', 'toggleDark')}")
        side = None
        if folder is not None:
            with gr.Sidebar(label="Conversations", open=False, elem_id="conversations", width=270):
                side = SideList(handlers, folder)
        with gr.Sidebar("Settings", open=False, position="right", elem_id="settings", width=300):
            controls = settings(handlers.engine.limits, session, model)
        chats = handlers.engine.models.info(handlers.first_model).chats
        with gr.Tabs(selected="chat" if chats else "completion", elem_id="tabs"):
            with gr.Tab("Chat", id="chat"):
                message = chat_tab(page, handlers, controls, side)
            with gr.Tab("Completion", id="completion"):
                text = _completion(handlers, controls)
            with gr.Tab("Side by side"):
                _side_by_side(handlers, controls)
            with gr.Tab("Memory lab"):
                _memory_lab()
            with gr.Tab("How it works"):
                gr.Markdown((scripts.STATIC / "about.md").read_text("utf-8"), elem_id="about")
        unescape = scripts.call("edit_box", "unescapeEditBoxes", CHAT)
        copies = scripts.call("copy_answer", "copyAnswers", CHAT)
        show_theme = scripts.call("tab_memory", "showTheme")
        show_tab = scripts.call("tab_memory", "showTab", "document.querySelector('#tabs')")
        start_tour = scripts.call("tour", "startOnce")  # in a browser without an earlier visit
        escape = scripts.call("sidebars", "closeWithEscape")
        gr.HTML(
            html_template=(scripts.STATIC / "tour.html").read_text("utf-8"),
            css_template=(scripts.STATIC / "tour.css").read_text("utf-8"),
            js_on_load=scripts.call("tour", "attach", "element"),
            elem_id="tour",
        )
        called = unescape, copies, show_theme, show_tab, start_tour, escape
        page.load(None, js=f"() => {{ {'; '.join(called)} }}", **PRIVATE)
        keep_settings(page, controls, message, text)
        add_endpoint(handlers.engine, handlers.first_model)
    return page


def _button(label: str, name: str, script: str) -> None:
    """Make a button with an icon of page.css; its name is for screen readers."""
    button = gr.Button(label, elem_id=name, size="sm", min_width=44, scale=0)
    button.click(None, js=script, **PRIVATE)


def _completion(handlers: Handlers, controls: Controls) -> gr.Textbox:
    """Make the tab of one box, in which the model continues the text; return the box."""
    temperature = controls.values["temperature"]
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            label = "The beginning of a text"
            box = prompt_box("complete", label, handlers, controls, lines=14, send="Continue")
            file = state_picker(handlers, controls.model, "complete", "Continue a state")
            state = gr.HTML(status(None), elem_id="complete-status")
            texts = [[example] for example in TEXT_EXAMPLES.values()]
            gr.Examples(texts, box, label="Try", example_labels=list(TEXT_EXAMPLES))
            here = gr.Slider(0, 2, 0.7, step=0.05, label="Temperature", elem_id="temperature-here")
            gr.HTML(
                html_template="<h3>Shares among the 8 likeliest next words</h3><ol></ol>",
                js_on_load=scripts.call("next_words", "attach", "element"),
                elem_id="next-words",
            )
        with gr.Column(scale=6, min_width=320):
            state_view(handlers.engine, handlers.updates, "complete-view")
            view = feed("complete-view")
    here.input(None, here, temperature, js="(v) => v", **PRIVATE)
    temperature.change(None, temperature, here, js="(v) => v", **PRIVATE)  # type: ignore[attr-defined]
    who = {"session": controls.session, "model": controls.model}
    inputs = {"text": box, "state": file, **who, **controls.values}
    stream(box.submit, handlers.complete, inputs, [box, view, state])
    textarea = "document.querySelector('#complete-box textarea')"
    follow = scripts.call("follow_end", "followEnd", textarea, "v")
    box.change(None, box, None, js=f"(v) => {{ {follow} }}", **PRIVATE)
    return box


def _side_by_side(handlers: Handlers, controls: Controls) -> None:
    names = handlers.engine.models.names()
    box = prompt_box("compare", "One prompt for both models", handlers, controls)
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
                state_view(handlers.engine, handlers.updates, f"{side}-view", linked="side by side")
                outputs += [output, feed(f"{side}-view"), state]
    left, right = models
    inputs = {"session": controls.session, "left": left, "right": right, "as_chat": as_chat}
    stream(box.submit, handlers.compare, {"text": box, **inputs, **controls.values}, outputs)


def _memory_lab() -> None:
    """Make the tab of the Memory lab, whose scripts run both models."""
    gr.HTML(
        html_template=(PARTS / "lab.html").read_text("utf-8"),
        css_template=(PARTS / "lab.css").read_text("utf-8"),
        js_on_load=scripts.call("lab", "attach", "element", "props", folder=scripts.SHARED_URL),
        elem_id="lab",
        tested=accuracies(LAB),
        **lab_data(LAB),
    )


def pair(names: Sequence[str]) -> tuple[str, str]:
    """Choose two models: the first with a variant of fixed transitions, or the first two."""
    for name in names:
        if f"{name}-fixed" in names:
            return name, f"{name}-fixed"
    return names[0], names[1 % len(names)]
