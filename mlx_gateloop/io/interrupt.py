"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the step, not an exception anywhere."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
    requests = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        requests.append(signal.SIGHUP)
    previous = [signal.signal(request, stop.request) for request in requests]
    try:
        yield stop
    finally:
        for request, handler in zip(requests, previous, strict=True):
            signal.signal(request, handler)
