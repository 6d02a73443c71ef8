"""Controls that all tabs share, and options of their events."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from ..generation.run import Limits
from . import scripts
from .handlers import Handlers
from .status import describe_model

# Gradio's progress indicator may stay over a chat that was busy when the event ended.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# The engine has a queue; Gradio's own would hide its length.
STREAM: dict[str, Any] = {"concurrency_limit": None, **PRIVATE}
QUICK: dict[str, Any] = {"queue": False, **PRIVATE}


@dataclass
class Controls:
    """Components that all tabs share; `values` has the other controls by `Handlers`' names."""

    session: gr.State
    model: gr.Dropdown
    system: gr.Textbox
    values: dict[str, Component]


def picker(handlers: Handlers) -> gr.Dropdown:
    """Make the list of models, with the sizes of the chosen one below it."""
    models = handlers.engine.models
    with gr.Column(min_width=240, elem_id="picker"):
        model = gr.Dropdown(
            models.names(),
            value=handlers.first_model,
            label="Model",
            show_label=False,
            container=False,
            allow_custom_value=True,  # also paths in a models folder, and hub ids
            elem_id="model",
        )
        about = gr.HTML(describe_model(models.info(handlers.first_model)), elem_id="model-about")
        with gr.Accordion("About this model", open=False, elem_id="card"):
            card = gr.Markdown(models.card(handlers.first_model), max_height=360)
    model.change(None, None, about, js="() => 'loading'", **PRIVATE)
    prepared = model.change(handlers.prepare, model, [about, card], **QUICK)
    prepared.failure(None, None, about, js="() => 'not loaded'", **PRIVATE)
    return model


def settings(limits: Limits, session: gr.State, model: gr.Dropdown) -> Controls:
    system = gr.Textbox(label="System prompt", lines=2, elem_id="system")
    most = limits.max_tokens
    values: dict[str, Component] = {
        "temperature": gr.Slider(0, 2, 0.7, step=0.05, label="Temperature", elem_id="temperature"),
        "top_p": gr.Slider(0.01, 1, 0.95, step=0.01, label="Top-p"),
        "top_k": gr.Slider(0, 200, 0, step=1, label="Top-k (0: off)"),
        "min_p": gr.Slider(0, 1, 0.05, step=0.01, label="Min-p"),
        "repetition_penalty": gr.Slider(1, 2, 1, step=0.01, label="Repetition penalty"),
        "max_tokens": gr.Slider(1, most, 256, step=1, label="Max tokens", elem_id="max-tokens"),
        "stop": gr.Textbox(label="Stop text (an answer ends after it)", elem_id="stop-text"),
        "seed": gr.Number(-1, precision=0, label="Seed (-1: random)", elem_id="seed"),
        "lookup": gr.Checkbox(
            False,
            label="Lookup decoding",
            info="Earlier text proposes the next tokens; the answer is the same",
            elem_id="lookup",
        ),
        "record": gr.Checkbox(
            True, label="Live view", info="Answers are faster without it", elem_id="live"
        ),
    }
    return Controls(session, model, system, values)


def keep_settings(page: gr.Blocks, controls: Controls, *boxes: gr.Textbox) -> None:
    """Keep the settings of a tab, and what its boxes hold, across reloads."""
    kept: list[Any] = [controls.model, controls.system, *boxes, *controls.values.values()]
    keep, stored = (scripts.call("tab_memory", f, "...v") for f in ("keepSettings", "settings"))
    changes = [setting.change for setting in kept]
    gr.on(changes, None, kept, None, js=f"(...v) => {{ {keep} }}", **PRIVATE)
    page.load(None, kept, kept, js=f"(...v) => {stored}", **PRIVATE)


def prompt_box(
    tab: str, label: str, handlers: Handlers, controls: Controls, lines: int = 1, send: str = "Send"
) -> gr.Textbox:
    """Make a tab's box with Send, which Stop replaces while the tab's model writes."""
    with gr.Row(elem_classes="prompt-row"):
        box = gr.Textbox(
            elem_id=f"{tab}-box",
            label=label,
            show_label=False,
            placeholder=f"{label} (Shift+Enter: {send})" if lines > 1 else label,
            lines=lines,
            max_lines=max(lines, 20),
            submit_btn=send,  # the handler rejects a text that is too long
            container=False,
            autofocus=tab == "chat",
            scale=5,
        )
        stop = gr.Button("Stop", elem_id=f"{tab}-stop", size="sm", scale=0, min_width=70)

    async def stop_runs(session: str) -> None:  # in the event loop, like the handlers
        handlers.stop(session, tab)

    stop.click(stop_runs, controls.session, **QUICK)
    return box


def stream(
    event: Callable[..., Any],
    handler: Callable[..., AsyncIterator[Any]],
    inputs: Mapping[str, Component],
    outputs: Sequence[Component],
) -> Any:
    """Stream what a handler yields to the outputs of a Gradio event.

    The handler gets the inputs' values as keyword arguments; Gradio passes them by position. An
    error also appears in the last output, before the status, as Gradio's notice disappears.
    """

    async def by_name(*values: Any) -> AsyncIterator[Any]:
        update: Any = ("",)
        try:
            async for update in handler(**dict(zip(inputs, values, strict=True))):
                yield update
        except gr.Error as error:
            line = f'<div class="stats"><p>{error.message}</p></div>'  # HTML already
            yield *[gr.skip()] * (len(outputs) - 1), line + update[-1]
            raise

    return event(by_name, list(inputs.values()), outputs, **STREAM)
