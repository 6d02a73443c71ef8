"""A time limit that also ends a wait inside MLX, where no exception can be raised."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf


class TimeLimit:
    """A limit of seconds for each block; a thread calls `expired` with the name of a late one."""

    def __init__(self, seconds: float, expired: Callable[[str], object]) -> None:
        self._seconds, self._expired = seconds, expired
        self._deadline, self._name = inf, ""
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._name, self._deadline = name, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._deadline = inf

    def _watch(self) -> None:
        while True:
            time.sleep(min(0.5, self._seconds / 4))
            if time.monotonic() > self._deadline:
                self._expired(self._name)
