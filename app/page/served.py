"""Server functions of the page's components: answers about a run."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable, signature
from typing import Any

from mlx_gateloop.errors import InputError

from ..generation.run import RecordedRuns, public_line
from ..generation.worker_pool import WorkerPool


def served(
    runs: RecordedRuns, pool: WorkerPool, job: Callable[..., Any]
) -> Callable[[object], Awaitable[Any]]:
    """Make a function that answers a page's request, a run's id and integers, in the pool.

    `job` gets the run, its trace and the integers, and may return an awaitable. Any other request
    is answered by None, and an error by its line.
    """
    parameters = signature(job)

    async def answer(request: object) -> Any:
        id, *numbers = request if isinstance(request, list) and request else [None]
        run = runs.get(id) if isinstance(id, str) else None
        if run is None or run.trace is None or any(type(n) is not int for n in numbers):
            return None
        try:
            given = parameters.bind(run, run.trace, *numbers)
        except TypeError:  # more or fewer integers
            return None
        try:
            result = await pool(job, *given.args)
            return await result if isawaitable(result) else result
        except InputError as error:
            return {"error": public_line(str(error))}

    answer.__name__ = job.__name__.strip("_")
    return answer
