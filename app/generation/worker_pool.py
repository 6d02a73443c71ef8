"""A desk for work that pages and programs ask for beside the engine: so much at once, no more."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Desk:
    """Works in threads of its own, so that a long line here holds up nothing else.

    Args:
        threads: Pieces of work at once.
        most: Pieces of work that are done or wait; more are turned away.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "desk")
        self._places = threading.Semaphore(most)

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """What the work returns, or None if it was turned away."""
        if not self._places.acquire(blocking=False):
            return None
        future = self._threads.submit(work, *arguments)
        future.add_done_callback(lambda _: self._places.release())  # also if nobody waits for it
        return await asyncio.wrap_future(future)
