"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the step, not an exception anywhere."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

NOT_COMPILED = ("Failed to compile function", "Could not load C++ shared library")  # MLX says


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training, after everything was saved."""


class Stop(threading.Event):
    """A request to stop; where it `may_raise`, nothing is unfinished and it comes as Ctrl-C."""

    may_raise = False

    def request(self, *_: object) -> None:
        self.set()
        if self.may_raise:
            self.may_raise = False
            raise KeyboardInterrupt


@contextmanager
def interrupt_flag() -> Iterator[Stop]:
    """Yield an event that these signals set in the main thread; again they do nothing."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    try:
        with handling(stop.request):
            yield stop
    except RuntimeError as error:  # Ctrl-C also ends the compiler that MLX runs
        if not stop.is_set() or not any(failure in str(error) for failure in NOT_COMPILED):
            raise
        raise Interrupted from error


@contextmanager
def handling(handler: Callable[..., Any]) -> Iterator[None]:
    """Call `handler` at the signals that ask for an end, but for those that the process ignores."""
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # nohup ignores SIGHUP, and a shell's job in the background SIGINT.
    requests = [one for one in every if signal.getsignal(one) is not signal.SIG_IGN]
    with ExitStack() as undo:
        for request in requests:
            undo.callback(signal.signal, request, signal.signal(request, handler))
        yield
