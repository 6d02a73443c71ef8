"""Gradio's Blocks without a heartbeat, and with errors of events in our log."""

import logging
from typing import Any

import gradio as gr

LOG = logging.getLogger(__name__)


class Page(gr.Blocks):
    """A Gradio page without a heartbeat stream per tab; errors of events go to `log`."""

    def get_config_file(self) -> Any:
        return {**super().get_config_file(), "connect_heartbeat": False}

    async def process_api(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().process_api(*arguments, **options)
        except Exception as error:
            answer = error if isinstance(error, gr.Error) else gr.Error(str(error))
            if answer.print_exception:  # messages to the user are not errors of the app
                LOG.exception("an event failed")
            answer.print_exception = False
            raise answer from None
