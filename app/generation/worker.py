"""The thread that loads models and runs all MLX work, a step of every run in turn."""

import gc
import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_gateloop.errors import InputError

from .models import LoadedModel, Models
from .run import Limits, RecordedRuns, Run, Steps
from .states import StateCache

LOG = logging.getLogger(__name__)
FAILED = "something went wrong inside; the server's log says what"
STUCK = "the answer took too long and was given up; ask again, or use another model"
SHUT_DOWN = "the engine is shut down"


class Work(Protocol):
    """Work with a model, step by step."""

    def steps(
        self, run: Run, loaded: LoadedModel, states: StateCache, limits: Limits
    ) -> Steps[None]:
        """Do it; yield where others take their turns."""


@dataclass(eq=False)
class Job:
    """A run in the queue or at work; without work its model is only loaded."""

    run: Run
    work: Work | None
    steps: Steps[None] | None = None  # from its first step to its last


class Queue(Protocol):
    """Source of a worker's jobs, with all that outlives the worker."""

    models: Models
    states: StateCache
    recorded: RecordedRuns
    limits: Limits

    def next_jobs(self, active: list[Job]) -> list[Job] | None:
        """Wait for work; returns the jobs to begin with, or None at the end."""

    def needed(self) -> set[str]:
        """Return the models of the jobs that wait."""


class Worker:
    """A thread and all that MLX made in it: MLX's streams belong to the thread that made them.

    A worker that is stuck is abandoned: another one takes over, without what this one holds.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._loaded: dict[str, LoadedModel] = {}
        self._active: list[Job] = []
        self._deadline = float("inf")  # of the step that is being taken
        self._abandoned = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def is_well(self, now: float) -> bool:
        """Return False if the thread has died, or takes too long for a step."""
        return self._thread.is_alive() and now <= self._deadline

    def abandon(self, reason: str) -> None:
        """Fail its runs; if its thread ever comes back, it ends."""
        self._abandoned = True
        for job in list(self._active):
            job.run.finish(reason)

    def join(self, seconds: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(seconds)

    def _serve(self) -> None:
        # On a CPU each new shape and each new temperature would be compiled, a second or more.
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
            mx.clear_streams()  # or the process may abort at its end

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
        except BaseException:  # a tokenizer's panic is none of Exception
            LOG.exception("a run of %s failed", job.run.model)
            error = FAILED
        finally:
            self._deadline = float("inf")
        if self._abandoned:
            return
        job.steps = None  # it holds the model
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
            queue = self._queue
            yield from job.work.steps(job.run, loaded, queue.states, queue.limits)

    def _load(self, name: str) -> LoadedModel:
        models = self._queue.models
        key = models.key(name)
        if key not in self._loaded:
            names = {job.run.model for job in self._active} | self._queue.needed()
            for other in self._loaded.keys() - set(map(models.key, names)):
                del self._loaded[other]  # first, so that there is room
            self._free()
            self._loaded[key] = models.load(name)
        return self._loaded[key]

    def _free(self) -> None:
        gc.collect()
        mx.clear_cache()
