"""The log: each error is in it once, so that it stays short however often someone provokes it."""

import logging

from gradio import queueing, routes

LOG = logging.getLogger(__name__)
# What a client can make them write; `__package__` is app or mlx_gateloop.app.
OURS = ("log", "guard", "generation.engine", "generation.worker")
LOGGERS = ("asyncio", "uvicorn.error", *(f"{__package__}.{name}" for name in OURS))
MOST_ERRORS = 100  # different ones; each takes some 5 kB


class FirstOfEach(logging.Filter):
    """Lets an error through once; errors are alike in their place and their first line."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[object] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        place = record.exc_info[2] if record.exc_info else None
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = place and (place.tb_frame.f_code.co_filename, place.tb_lineno)
        error = record.name, record.getMessage().partition("\n")[0], where
        is_new = error not in self._seen and len(self._seen) < MOST_ERRORS
        if is_new:
            self._seen.add(error)
        return is_new


class _Logged:
    """Takes the place of the module `traceback` where Gradio prints the errors of requests."""

    @staticmethod
    def print_exc() -> None:
        LOG.exception("an event failed")


def keep_short() -> None:
    """Log each error once, those that Gradio prints too."""
    first = FirstOfEach()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(first)
    for module in (queueing, routes):
        vars(module)["traceback"] = _Logged
