"""The engine: a bounded queue, the worker that takes from it, and a watchdog over that."""

import atexit
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

from .decoder import Request
from .models import Models
from .run import Limits, RecordedRuns, Run, Steps
from .states import Message, StateCache, as_messages
from .worker import SHUT_DOWN, STUCK, Job, Work, Worker
from .worker_pool import WorkerPool

T = TypeVar("T")
LOG = logging.getLogger(__name__)
WATCH_SECONDS = 1.0  # between two looks at the worker


class Engine:
    """Runs generations one step at a time, up to `limits.active` in turns; others wait in order.

    All MLX work is the worker's. A watchdog replaces one that has died or is stuck in a step.
    """

    def __init__(self, models: Models, limits: Limits | None = None) -> None:
        self.models, self.limits = models, limits or Limits()
        limits = self.limits
        self.states = StateCache(limits.conversations, limits.boundaries, limits.boundary_bytes)
        self.recorded = RecordedRuns(limits.runs, limits.trace_bytes)
        self._downloads = WorkerPool(threads=2, most=4)
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
    ) -> Run:
        """Put an answer to messages, or the continuation of a text, into the queue.

        It continues the cached states of `conversation`, a secret id, and adds its own.
        Values that are not allowed, unknown models and a full queue raise `InputError`.
        """
        prompt = messages if isinstance(messages, str) else as_messages(messages)
        self._check(prompt, max_tokens)
        if sampling.seed is None:  # kept by the run: the same answer can be given again
            sampling = replace(sampling, seed=secrets.randbits(63))
        request = Request(prompt, sampling, max_tokens, record, conversation)
        return self.enqueue(model, request, record)

    async def fetch(self, model: str) -> None:
        """Download a model of the hub before it is asked for; other runs go on meanwhile."""
        self.models.check(model)
        if not self.models.is_here(model) and not await self._downloads(self.models.fetch, model):
            raise InputError("the server is busy with other downloads; try again in a moment")

    def prepare(self, model: str) -> Run:
        """Load a model before it is needed; the run has no pieces."""
        return self.enqueue(model, None)

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a short question, which the worker's thread finds in one step."""
        answers: list[T] = []

        def steps() -> Steps[None]:
            answers.append(question())
            yield from ()

        run = Run("", self._cancelled)
        self._put(Job(run, None, steps()))
        await run.ended()
        return answers[0]

    def close(self) -> None:
        """Stop everything and end the threads."""
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
        """Replace the worker if it has died or is stuck; `now` is of `time.monotonic`."""
        if not self._closing and not self._worker.is_well(now):
            LOG.error("the engine's thread is stuck or dead; another one takes over")
            self._worker.abandon(STUCK)
            self._worker = Worker(self)

    def next_jobs(self, active: list[Job]) -> list[Job] | None:
        """Wait for work; returns the jobs to begin with, or None at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._waiting or active)
            if self._closing:
                return None
            room = max(0, self.limits.active - len(active))
            return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def needed(self) -> set[str]:
        """Return the models of the jobs that wait."""
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
            most = limits.characters
            raise InputError(f"text: {longest:,} characters, at most {most:,} are allowed")
        if (total := sum(map(len, texts))) > limits.conversation_characters:
            most = limits.conversation_characters
            raise InputError(f"messages: {total:,} characters in all, at most {most:,} are allowed")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise InputError("text: holds half of a character, a lone surrogate; type it again")

    def enqueue(self, model: str, work: Work | None, record: bool = False) -> Run:
        """Put work with a model into the queue; `record` keeps the run for its trace."""
        self.models.check(model)
        run = Run(model, self._cancelled)
        if isinstance(work, Request):
            run.sampling, run.max_tokens = work.sampling, work.max_tokens
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
            if record:  # the others leave nothing to look at
                self.recorded.put(job.run)
            self._condition.notify_all()

    def _cancelled(self, run: Run) -> None:
        with self._condition:
            for job in [job for job in self._waiting if job.run is run]:
                self._waiting.remove(job)
                run.finish()

    def _watch(self) -> None:
        while not self._closing:
            with self._condition:
                self._condition.wait_for(lambda: self._closing, WATCH_SECONDS)
            self.check_worker(time.monotonic())
