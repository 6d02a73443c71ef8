"""A bounded thread pool, which rejects excess jobs."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerPool:
    """Threads for one kind of job, so that its queue delays no other kind."""

    def __init__(self, threads: int, max_jobs: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "worker")
        self._slots = threading.Semaphore(max_jobs)

    async def __call__(
        self, job: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T | None:
        """Return the job's result, or None if the pool is full."""
        if not self._slots.acquire(blocking=False):
            return None
        future = self._threads.submit(job, *arguments, **options)
        future.add_done_callback(lambda _: self._slots.release())  # even if its caller is cancelled
        return await asyncio.wrap_future(future)
