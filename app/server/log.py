"""Errors in the log, each once, so that clients cannot fill the log."""

import logging
from typing import Any

import gradio as gr

LOG = logging.getLogger(__name__)
MAX_ERRORS = 100  # different errors; each takes about 5 kB


def handler() -> logging.Handler:
    """Make a handler for the root logger that writes the first of equal errors.

    Equal errors have the same location and the same first line.
    """
    seen: set[object] = set()

    def is_new(record: logging.LogRecord) -> bool:
        frame = record.exc_info[2] if record.exc_info else None
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = frame and (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
        error = record.name, record.getMessage().partition("\n")[0], where
        if error in seen or len(seen) >= MAX_ERRORS:
            return False
        seen.add(error)
        return True

    made = logging.StreamHandler()
    made.addFilter(is_new)
    return made


class Page(gr.Blocks):
    """A Gradio page without a heartbeat stream per tab; errors of events go to the log."""

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
