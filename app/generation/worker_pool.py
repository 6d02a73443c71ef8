"""A bounded thread pool; excess jobs are refused."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Threads for one kind of job, so that a long queue of it delays nothing else."""

    def __init__(self, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "worker")
        self._places = threading.Semaphore(most)

    async def __call__(
        self, job: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T | None:
        """Return the job's result, or None if it is refused."""
        if not self._places.acquire(blocking=False):
            return None
        future = self._threads.submit(job, *arguments, **options)
        future.add_done_callback(lambda _: self._places.release())  # also if nobody waits for it
        return await asyncio.wrap_future(future)
