"""The page: tabs, settings and the events between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ..api import add_endpoint
from ..conversations.folder import Saved
from ..generation.run import Limits
from .events import PRIVATE, QUICK, STREAM
from .handlers import Answers, History, described, displayed, new_session, status
from .saved_panel import Keep
from .state_view import STATIC, state_view

CHAT_EXAMPLES = ["What does `str.split` do?", "What does `re.sub` do?", "How do I use json.dumps?"]
TEXT_EXAMPLES = ["str.split(", "json.dumps("]
DARK = "() => document.body.classList.toggle('dark')"
EDIT_BOX = STATIC / "edit_box.js"
SETTINGS = "() => document.querySelector('#settings .toggle-button').click()"
ABOUT = """
### What you see

Each token multiplies the state of every channel by a complex number *a* that the model has chosen
for this token: `h = a h + k v`. The picture shows all of them, as they come.

- **Magnitude.** Bright channels keep what they hold for thousands of tokens, dark ones forget it at
  once. The colour is the half-life, -ln 2 / ln|a|. A dark column over many channels is a reset;
  it is marked in red above the picture and on the text.
- **Phase.** How far the token turns the state; the colours close into a circle.
- **Mean |a|.** One row a layer, as in the paper's figure. Click a row to see that layer.
- **What is remembered.** Click a token: the orange of an earlier one is the share of it that is
  left in the state, averaged over channels; the line below it, what the output reads of it.

Click or use the arrow keys to move, + and - to zoom. The state has the same size after one token
and after a million: a new message is all that is read, however long the chat.
"""


@dataclass
class Settings:
    """The controls that every tab shares."""

    model: gr.Dropdown
    system: gr.Textbox
    sampling: Sequence[gr.components.Component]
    session: gr.State


def build(answers: Answers, saved: Saved) -> gr.Blocks:
    """The page on one engine."""
    with gr.Blocks(
        title="GateLoop", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)
    ) as page:
        session = gr.State(time_to_live=6 * 3600, delete_callback=answers.forget)
        session.value = new_session  # at its first use; given above, it would come after the page
        with gr.Row(elem_id="head"):
            gr.HTML(
                "<h1>GateLoop</h1><p>A chat that shows what the model remembers and forgets</p>",
                elem_id="title",
            )
            model = _picker(answers)
            for icon, name, script in (("⚙", "settings-button", SETTINGS), ("◐", "dark", DARK)):
                button = gr.Button(icon, elem_id=name, size="sm", min_width=44, scale=0)
                button.click(None, js=script, **PRIVATE)
        with gr.Sidebar(label="Settings", open=False, elem_id="settings", width=300):
            settings = _settings(answers.engine.limits, session, model)
            keep = Keep(saved)
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Chat"):
                _chat(answers, settings, keep)
            with gr.Tab("Completion"):
                _completion(answers, settings)
            with gr.Tab("Side by side"):
                _side_by_side(answers, settings)
            with gr.Tab("About"):
                gr.Markdown(ABOUT, elem_id="about")
        page.load(None, js=EDIT_BOX.read_text(encoding="utf-8"), **PRIVATE)
        add_endpoint(answers.engine, answers.first_model)
    return page


def _picker(answers: Answers) -> gr.Dropdown:
    models = answers.engine.models
    names = models.names()
    with gr.Column(min_width=240, elem_id="picker"):
        model = gr.Dropdown(
            names,
            value=answers.first_model,
            show_label=False,
            container=False,
            allow_custom_value=True,  # a path in a models folder, or a hub id: Models decides
            elem_id="model",
        )
        about = gr.HTML(described(models.info(answers.first_model)), elem_id="model-about")
    model.change(answers.prepare, model, about, **STREAM)
    return model


def _settings(limits: Limits, session: gr.State, model: gr.Dropdown) -> Settings:
    system = gr.Textbox(
        label="System prompt", lines=2, max_length=limits.characters, elem_id="system"
    )
    sampling = [
        gr.Slider(0, 2, 0.7, step=0.05, label="Temperature", elem_id="temperature"),
        gr.Slider(0.01, 1, 0.95, step=0.01, label="Top-p"),
        gr.Slider(0, 200, 0, step=1, label="Top-k (0: off)"),
        gr.Slider(0, 1, 0.05, step=0.01, label="Min-p"),
        gr.Slider(1, 2, 1.1, step=0.01, label="Repetition penalty"),
        gr.Slider(1, limits.max_tokens, 256, step=1, label="Max tokens", elem_id="max-tokens"),
        gr.Number(
            -1, precision=0, minimum=-1, label="Seed (-1: another each time)", elem_id="seed"
        ),
        gr.Checkbox(True, label="Live view", info="Without it answers come faster", elem_id="live"),
    ]
    return Settings(model, system, sampling, session)


def _chat(answers: Answers, settings: Settings, keep: Keep) -> None:
    history = gr.State([])
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            chatbot = gr.Chatbot(
                height=430,
                elem_id="chat",
                show_label=False,
                editable="user",
                render_markdown=False,
                allow_tags=False,
                buttons=[],  # they would copy escaped text; selecting copies what is shown
                feedback_options=None,
                placeholder="Ask something. Nothing leaves this machine.",
            )
            box, stop = _prompt_box(answers, "chat", "Your message")
            gr.Examples([[example] for example in CHAT_EXAMPLES], box, label="Try")
            state = gr.HTML(status(None), elem_id="chat-status")
            clear = gr.Button("New conversation", size="sm", elem_id="clear")
        with gr.Column(scale=6, min_width=320):
            view = state_view(answers.engine, "chat-view")
    shared = [settings.session, settings.model, settings.system, *settings.sampling]
    shows = [history, chatbot, view, state]
    running: list[Any] = [
        box.submit(answers.chat, [box, history, *shared], [box, *shows], **STREAM)
    ]
    for event, change in ((chatbot.retry, _retry), (chatbot.edit, _edit)):
        changed = event(change, history, history, **QUICK)
        running.append(changed.then(answers.again, [history, *shared], shows, **STREAM))
    chatbot.undo(_undo, history, [history, chatbot, box], **QUICK)
    for event in (clear.click, chatbot.clear):
        # cancelled, not stopped: a stopped answer would be shown once more
        event(None, None, None, cancels=running, **QUICK).then(
            lambda: ([], [], None, status(None)), None, shows, **QUICK
        )
    stop.click(lambda session: answers.stop(session, "chat"), settings.session, **QUICK)
    keep.connect([settings.session, settings.model, settings.system], shows, running)


def _retry(history: History, event: gr.RetryData) -> History:
    return history[: _index(event) + 1]


def _edit(history: History, event: gr.EditData) -> History:
    return [*history[: _index(event)], {"role": "user", "content": str(event.value)}]


def _undo(history: History, event: gr.UndoData) -> tuple[Any, ...]:
    index = _index(event)
    left = history[:index]
    return left, displayed(left), history[index]["content"] if index < len(history) else ""


def _index(event: gr.RetryData | gr.EditData | gr.UndoData) -> int:
    return event.index[0] if isinstance(event.index, tuple | list) else event.index


def _completion(answers: Answers, settings: Settings) -> None:
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320):
            box, stop = _prompt_box(answers, "complete", "The beginning of a text", lines=4)
            gr.Examples([[example] for example in TEXT_EXAMPLES], box, label="Try")
            state = gr.HTML(status(None), elem_id="complete-status")
            output = gr.Textbox(
                label="The text", lines=12, interactive=False, elem_id="complete-text"
            )
        with gr.Column(scale=6, min_width=320):
            view = state_view(answers.engine, "complete-view")
    box.submit(
        answers.complete,
        [box, settings.session, settings.model, *settings.sampling],
        [output, view, state],
        **STREAM,
    )
    stop.click(lambda session: answers.stop(session, "complete"), settings.session, **QUICK)


def _side_by_side(answers: Answers, settings: Settings) -> None:
    names = answers.engine.models.names()
    box, stop = _prompt_box(answers, "compare", "One prompt for both models")
    as_chat = gr.Checkbox(True, label="As a chat message", container=False)
    models, shows = [], []
    with gr.Row(equal_height=False):
        for i, side in enumerate(("left", "right")):
            with gr.Column(min_width=320):
                models.append(
                    gr.Dropdown(names, value=names[i % len(names)], label=f"Model on the {side}")
                )
                output = gr.Textbox(
                    show_label=False, lines=5, interactive=False, elem_id=f"{side}-text"
                )
                state = gr.HTML(status(None), elem_id=f"{side}-status")
                shows += [output, state_view(answers.engine, f"{side}-view"), state]
    box.submit(
        answers.compare,
        [box, settings.session, *models, as_chat, *settings.sampling],
        shows,
        **STREAM,
    )
    stop.click(lambda session: answers.stop(session, "compare"), settings.session, **QUICK)


def _prompt_box(
    answers: Answers, name: str, placeholder: str, lines: int = 1
) -> tuple[gr.Textbox, gr.Button]:
    with gr.Row(elem_classes="prompt-row"):
        box = gr.Textbox(
            elem_id=f"{name}-box",
            show_label=False,
            placeholder=f"{placeholder} (Shift+Enter: send)" if lines > 1 else placeholder,
            lines=lines,
            max_length=answers.engine.limits.characters,
            submit_btn=True,
            container=False,
            scale=5,
        )
        stop = gr.Button("Stop", elem_id=f"{name}-stop", size="sm", scale=0, min_width=70)
    return box, stop
