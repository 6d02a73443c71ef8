"""The engine: a bounded queue of jobs, a worker thread, and a watchdog."""

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TypeVar

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

from .decoder import Request
from .models import Models
from .prefix_cache import Message, PrefixCache, as_messages
from .run import Limits, RecordedRuns, Run
from .state_files import StateFile
from .worker import SHUT_DOWN, STUCK, Job, Work, Worker
from .worker_pool import WorkerPool

T = TypeVar("T")
LOG = logging.getLogger(__name__)
WATCH_SECONDS = 1.0  # between two checks of the worker


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
        options = (record, conversation, stop, lookup, state)
        request = Request(prompt, sampling, max_tokens, *options)
        return self.enqueue(model, request, record)

    async def fetch(self, model: str) -> None:
        """Download a model from the hub; other runs continue meanwhile."""
        self.models.check(model)
        if not self.models.is_local(model) and not await self._downloads(self.models.fetch, model):
            raise InputError("the server is busy with other downloads; try again in a moment")

    def prepare(self, model: str) -> Run:
        """Load a model before its first use; the run has no pieces."""
        return self.enqueue(model, None)

    def close(self) -> None:
        """Stop all runs and join the threads."""
        with self._condition:
            self._closing = True
            for job in self._waiting:
                job.run.finish(SHUT_DOWN)
            self._waiting.clear()
            self._condition.notify_all()
        self._watchdog.join()
        self._worker.join(self.limits.step_seconds)
        atexit.unregister(self.close)

    def check_worker(self, now: float) -> None:
        """Replace the worker if it has died or is stuck; `now` is a `time.monotonic` time."""
        if not self._closing and not self._worker.is_healthy(now):
            LOG.error("the engine's thread is stuck or dead; starting another one")
            self._worker.abandon(STUCK)
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

    def _check(self, prompt: str | tuple[Message, ...], max_tokens: int) -> None:
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
        """Queue work with a model; `record` keeps the run for its trace."""
        self.models.check(model)
        run = Run(model, self._remove)
        if isinstance(work, Request):
            run.sampling, run.max_tokens = work.sampling, work.max_tokens
            run.state = work.state
        self._put(Job(run, work), record)
        return run

    def _put(self, job: Job, record: bool = False) -> None:
        with self._condition:
            if self._closing:
                raise InputError(SHUT_DOWN)
            if len(self._waiting) >= self.limits.queue:
                waiting = f"{len(self._waiting)} requests are waiting"
                raise InputError(f"the server is busy, {waiting}; try again in a moment")
            self._waiting.append(job)
            if record:  # other runs have nothing to show
                self.recorded.put(job.run)
            self._condition.notify_all()

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
