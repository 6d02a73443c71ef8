"""The engine: a bounded queue of jobs, a watchdog, and a thread that does all MLX work.

The thread loads models and advances the runs in turn, one step each.
"""

import atexit
import gc
import logging
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

from .decoder import Request
from .models import LoadedModel, Models
from .prefix_cache import Messages, PrefixCache, as_messages
from .run import Limits, RecordedRuns, Run, Steps
from .state_files import StateFile
from .worker_pool import WorkerPool

LOG = logging.getLogger(__name__)
WATCH_SECONDS = 1.0  # between two checks of the worker
FAILED = "internal error; see the server's log"
STUCK = "the answer took too long and was stopped; ask again, or use another model"
SHUT_DOWN = "the engine is shut down"


class Work(Protocol):
    """Work with a model in steps."""

    def steps(
        self, run: Run, loaded: LoadedModel, prefix_cache: PrefixCache, limits: Limits
    ) -> Steps[None]:
        """Do the work; yield where other runs may advance."""


@dataclass(eq=False)
class Job:
    """A queued or active run; without `work` it only loads its model."""

    run: Run
    work: Work | None
    steps: Steps[None] | None = None  # set while the run is active


class Engine:
    """Runs up to `limits.active` generations, the next tokens in one pass; others wait in order.

    The worker does all MLX work. A watchdog replaces it if it has died or is stuck in a step.
    """

    def __init__(self, models: Models, limits: Limits | None = None) -> None:
        self.models, self.limits = models, limits or Limits()
        limits = self.limits
        self.prefix_cache = PrefixCache(limits.prefix_states, limits.prefix_bytes)
        self.recorded = RecordedRuns(limits.runs, limits.trace_bytes)
        self._downloads = WorkerPool(threads=2, max_jobs=4)
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._closing = False
        self._worker = Worker(self)
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()
        atexit.register(self.close)

    def submit(
        self,
        model: str,
        messages: list[dict[str, str]] | str,
        sampling: Sampling,
        max_tokens: int,
        record: bool = True,
        conversation: str | None = None,
        stop: tuple[str, ...] = (),
        lookup: bool = False,
        state: StateFile | None = None,
    ) -> Run:
        """Queue an answer to messages, or the continuation of a text; see `Request`.

        It reuses the cached states of `conversation`, a secret id, and adds its own. Invalid
        values, unknown models and a full queue raise `InputError`.
        """
        prompt = messages if isinstance(messages, str) else as_messages(messages)
        self._check(prompt, max_tokens)
        if sampling.seed is None:  # the run stores it, so that the answer can be repeated
            sampling = replace(sampling, seed=secrets.randbits(63))
        request = Request(prompt, sampling, max_tokens, record, conversation, stop, lookup, state)
        return self.enqueue(model, request, record)

    async def fetch(self, model: str) -> None:
        """Download a model from the hub; other runs continue meanwhile."""
        self.models.check(model)
        if not self.models.is_local(model) and not await self._downloads(self.models.fetch, model):
            raise InputError("the server is busy with other downloads; try again in a moment")

    def close(self) -> None:
        """Stop all runs and join the threads."""
        with self._condition:
            self._closing = True
            for job in self._waiting:
                job.run.finish(SHUT_DOWN)
            self._waiting.clear()
            self._condition.notify_all()
        self._watchdog.join()
        self._worker.thread.join(self.limits.step_seconds)
        atexit.unregister(self.close)

    def check_worker(self, now: float) -> None:
        """Replace the worker if it has died or is stuck; `now` is a `time.monotonic` time."""
        worker = self._worker
        if not self._closing and not (worker.thread.is_alive() and now <= worker.deadline):
            LOG.error("the engine's thread is stuck or dead; starting another one")
            worker.abandon(STUCK)
            self._worker = Worker(self)

    def next_jobs(self, active: list[Job]) -> list[Job] | None:
        """Wait for work; return the jobs to start, or None when closing."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._waiting or active)
            if self._closing:
                return None
            free = max(0, self.limits.active - len(active))
            return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]

    def needed(self) -> set[str]:
        """Return the models of the waiting jobs."""
        with self._condition:
            return {job.run.model for job in self._waiting}

    def _check(self, prompt: str | Messages, max_tokens: int) -> None:
        limits = self.limits
        texts = [prompt] if isinstance(prompt, str) else [text for _, text in prompt]
        if not isinstance(max_tokens, int) or not 1 <= max_tokens <= limits.max_tokens:
            raise InputError(f"max_tokens: expected 1 to {limits.max_tokens}, got {max_tokens}")
        if len(texts) > limits.messages:
            raise InputError(f"messages: at most {limits.messages}; start a new conversation")
        if (longest := max(map(len, texts))) > limits.characters:
            limit = f"{limits.characters:,}"
            raise InputError(f"text: {longest:,} characters, at most {limit} are allowed")
        if (total := sum(map(len, texts))) > limits.conversation_characters:
            limit = f"{limits.conversation_characters:,}"
            raise InputError(f"messages: {total:,} characters in all, at most {limit} are allowed")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise InputError("text: contains a lone surrogate, half of a character; type it again")

    def enqueue(self, model: str, work: Work | None, record: bool = False) -> Run:
        """Queue work with a model, or only load it; `record` keeps the run for its trace."""
        self.models.check(model)
        run = Run(model, self._remove)
        if isinstance(work, Request):
            run.sampling, run.max_tokens = work.sampling, work.max_tokens
            run.stop, run.state = work.stop, work.state
        with self._condition:
            if self._closing:
                raise InputError(SHUT_DOWN)
            if len(self._waiting) >= self.limits.queue:
                waiting = f"{len(self._waiting)} requests are waiting"
                raise InputError(f"the server is busy, {waiting}; try again in a moment")
            self._waiting.append(Job(run, work))
            if record:  # other runs have nothing to show
                self.recorded.put(run)
            self._condition.notify_all()
        return run

    def _remove(self, run: Run) -> None:
        with self._condition:
            for job in [job for job in self._waiting if job.run is run]:
                self._waiting.remove(job)
                run.finish()

    def _watch(self) -> None:
        while not self._closing:
            with self._condition:
                self._condition.wait_for(lambda: self._closing, WATCH_SECONDS)
            self.check_worker(time.monotonic())


class Worker:
    """A thread with its loaded models: MLX streams belong to the thread that made them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: dict[str, LoadedModel] = {}
        self._active: list[Job] = []
        self.deadline = float("inf")  # when the current step must end
        self._abandoned = False
        self.thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self.thread.start()

    def abandon(self, reason: str) -> None:
        """Fail its runs; the thread ends when its step returns."""
        self._abandoned = True
        for job in list(self._active):
            job.run.finish(reason)

    def _serve(self) -> None:
        # On a CPU, compiling each new shape and temperature takes a second or more.
        compiles = mx.default_device().type != mx.cpu
        if not compiles:
            mx.disable_compile()
        reason, next_jobs = SHUT_DOWN, self._engine.next_jobs
        try:
            while not self._abandoned and (jobs := next_jobs(self._active)) is not None:
                self._active += jobs
                for job in list(self._active):
                    if not self._abandoned:
                        self._advance(job)
        except BaseException:
            LOG.exception("the engine's thread failed")
            reason = FAILED
        finally:
            for job in self._active:
                job.steps = None
                if not job.run.done:
                    job.run.finish(reason)
            self._active.clear()
            self._loaded.clear()
            self._free()
            if not compiles and not self._abandoned:
                mx.enable_compile()
            mx.clear_streams()  # otherwise the process may abort at exit

    def _advance(self, job: Job) -> None:
        error = None
        limits = self._engine.limits
        seconds = limits.step_seconds if job.steps else limits.loading_seconds
        self.deadline = time.monotonic() + seconds
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
            self.deadline = float("inf")
        if self._abandoned:
            return
        job.steps = None  # release the model
        if len(self._active) == 1:
            mx.clear_cache()
        self._engine.recorded.evict()
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
            engine = self._engine
            yield from job.work.steps(job.run, loaded, engine.prefix_cache, engine.limits)

    def _load(self, name: str) -> LoadedModel:
        models = self._engine.models
        key = models.key(name)
        loaded = self._loaded.get(key)
        if loaded is None or loaded.fingerprint != models.fingerprint(name):
            names = {job.run.model for job in self._active} | self._engine.needed()
            for other in self._loaded.keys() - ({*map(models.key, names)} - {key}):
                del self._loaded[other]  # first, to free memory
            self._free()
            self._loaded[key] = models.load(name)
        return self._loaded[key]

    def _free(self) -> None:
        gc.collect()
        mx.clear_cache()
