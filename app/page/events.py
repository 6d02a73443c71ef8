"""Options of the page's events, and handlers that get values by name."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from .status import refused

# Gradio's own sign of progress may stay over a chat that was busy when the event ended.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# The engine has the queue; one of Gradio's before it would only hide how long that is.
STREAM: dict[str, Any] = {"concurrency_limit": None, **PRIVATE}
QUICK: dict[str, Any] = {"queue": False, **PRIVATE}


def stream(
    event: Callable[..., Any],
    handler: Callable[..., AsyncIterator[Any]],
    inputs: Mapping[str, Component],
    outputs: Sequence[Component],
) -> Any:
    """Let an event of Gradio stream what a handler yields.

    The handler takes the inputs' values as keyword arguments; Gradio gives them by position.
    Its complaint, a passing notice, stays in the last output, the line of figures.
    """

    async def by_name(*values: Any) -> AsyncIterator[Any]:
        try:
            async for update in handler(**dict(zip(inputs, values, strict=True))):
                yield update
        except gr.Error as error:
            yield *[gr.skip()] * (len(outputs) - 1), refused(error.message)
            raise

    return event(by_name, list(inputs.values()), outputs, **STREAM)
