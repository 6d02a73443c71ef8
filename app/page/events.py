"""Options of the page's events, and handlers with named arguments."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from .status import error_status

# Gradio's progress indicator may stay over a chat that was busy when the event ended.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# The engine has a queue; Gradio's own would hide its length.
STREAM: dict[str, Any] = {"concurrency_limit": None, **PRIVATE}
QUICK: dict[str, Any] = {"queue": False, **PRIVATE}


def stream(
    event: Callable[..., Any],
    handler: Callable[..., AsyncIterator[Any]],
    inputs: Mapping[str, Component],
    outputs: Sequence[Component],
) -> Any:
    """Stream what a handler yields to the outputs of a Gradio event.

    The handler gets the inputs' values as keyword arguments; Gradio passes them by position. An
    error also appears in the last output, the status line, because Gradio's notice disappears.
    """

    async def by_name(*values: Any) -> AsyncIterator[Any]:
        try:
            async for update in handler(**dict(zip(inputs, values, strict=True))):
                yield update
        except gr.Error as error:
            yield *[gr.skip()] * (len(outputs) - 1), error_status(error.message)
            raise

    return event(by_name, list(inputs.values()), outputs, **STREAM)
