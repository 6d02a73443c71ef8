"""The page as Gradio's Blocks: no heartbeat, and errors of events in our log."""

import logging
from typing import Any

import gradio as gr

LOG = logging.getLogger(__name__)


class Page(gr.Blocks):
    """A page of Gradio's with two differences.

    It has no heartbeat, a stream that every tab would keep open. An event that fails is logged by
    `log`, which limits what a client can write; Gradio would print every traceback.
    """

    def get_config_file(self) -> Any:
        return {**super().get_config_file(), "connect_heartbeat": False}

    async def process_api(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().process_api(*arguments, **options)
        except Exception as error:
            answer = error if isinstance(error, gr.Error) else gr.Error(str(error))
            if answer.print_exception:  # a complaint to the visitor is no error of ours
                LOG.exception("an event failed")
            answer.print_exception = False
            raise answer from None
