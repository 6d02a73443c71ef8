"""The thread that loads models and does all MLX work, one step of each run in turn."""

import gc
import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_gateloop.errors import InputError

from .models import LoadedModel, Models
from .prefix_cache import PrefixCache
from .run import Limits, RecordedRuns, Run, Steps

LOG = logging.getLogger(__name__)
FAILED = "internal error; see the server's log"
STUCK = "the answer took too long and was stopped; ask again, or use another model"
SHUT_DOWN = "the engine is shut down"


class Work(Protocol):
    """Work with a model in steps."""

    def steps(self, run: Run, loaded: LoadedModel, queue: "Queue") -> Steps[None]:
        """Do the work; yield where other runs may advance."""


@dataclass(eq=False)
class Job:
    """A queued or active run; without `work` it only loads its model."""

    run: Run
    work: Work | None
    steps: Steps[None] | None = None  # set while the run is active


class Queue(Protocol):
    """Source of a worker's jobs, and of all that outlives the worker."""

    models: Models
    prefix_cache: PrefixCache
    recorded: RecordedRuns
    limits: Limits

    def next_jobs(self, active: list[Job]) -> list[Job] | None:
        """Wait for work; return the jobs to start, or None when closing."""

    def needed(self) -> set[str]:
        """Return the models of the waiting jobs."""


class Worker:
    """A thread with its loaded models: MLX streams belong to the thread that made them.

    The engine abandons a stuck worker and starts another one, which loads the models again.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._loaded: dict[str, LoadedModel] = {}
        self._active: list[Job] = []
        self._deadline = float("inf")  # when the current step must end
        self._abandoned = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def is_healthy(self, now: float) -> bool:
        """Return False if the thread has died or exceeds the time of a step."""
        return self._thread.is_alive() and now <= self._deadline

    def abandon(self, reason: str) -> None:
        """Fail its runs; the thread ends when its step returns."""
        self._abandoned = True
        for job in list(self._active):
            job.run.finish(reason)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(seconds)

    def _serve(self) -> None:
        # On a CPU, compiling each new shape and temperature takes a second or more.
        compiles = mx.default_device().type != mx.cpu
        if not compiles:
            mx.disable_compile()
        reason = SHUT_DOWN
        try:
            while not self._abandoned and (jobs := self._queue.next_jobs(self._active)) is not None:
                self._active += jobs
                for job in list(self._active):
                    if not self._abandoned:
                        self._advance(job)
        except BaseException:
            LOG.exception("the engine's thread failed")
            reason = FAILED
        finally:
            self._end(reason)
            if not compiles and not self._abandoned:
                mx.enable_compile()
            mx.clear_streams()  # otherwise the process may abort at exit

    def _end(self, reason: str) -> None:
        for job in self._active:
            job.steps = None
            if not job.run.done:
                job.run.finish(reason)
        self._active.clear()
        self._loaded.clear()
        self._free()

    def _advance(self, job: Job) -> None:
        error = None
        limits = self._queue.limits
        seconds = limits.step_seconds if job.steps else limits.loading_seconds
        self._deadline = time.monotonic() + seconds
        try:
            job.steps = job.steps or self._steps(job)
            next(job.steps)
            return
        except StopIteration:
            pass
        except InputError as problem:
            error = str(problem)
        except BaseException:  # a tokenizer's panic is not an Exception
            LOG.exception("a run of %s failed", job.run.model)
            error = FAILED
        finally:
            self._deadline = float("inf")
        if self._abandoned:
            return
        job.steps = None  # release the model
        if len(self._active) == 1:
            mx.clear_cache()
        self._queue.recorded.evict()
        self._active.remove(job)
        job.run.finish(error)

    def _steps(self, job: Job) -> Steps[None]:
        if job.run.stopped:
            return
        loaded = self._load(job.run.model)
        yield
        if job.work is None:
            yield from loaded.tokenizer.call("special_ids")
        else:
            yield from job.work.steps(job.run, loaded, self._queue)

    def _load(self, name: str) -> LoadedModel:
        models = self._queue.models
        key = models.key(name)
        if key not in self._loaded:
            names = {job.run.model for job in self._active} | self._queue.needed()
            for other in self._loaded.keys() - set(map(models.key, names)):
                del self._loaded[other]  # first, to free memory
            self._free()
            self._loaded[key] = models.load(name)
        return self._loaded[key]

    def _free(self) -> None:
        gc.collect()
        mx.clear_cache()
