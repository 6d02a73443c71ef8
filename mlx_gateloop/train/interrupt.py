"""Ctrl-C (or a SIGTERM) as a wish to stop at the next step, instead of an exception anywhere."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training, after everything was saved."""


@contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets meanwhile; a second one changes nothing, so it can't harm a save.

    Only the main thread gets signals: elsewhere the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    wishes = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(wish, lambda *_: stop.set()) for wish in wishes]
    try:
        yield stop
    finally:
        for wish, handler in zip(wishes, previous, strict=True):
            signal.signal(wish, handler)
