"""The engine: one thread that loads models and runs all MLX work, for everyone in turns."""

import atexit
import gc
import logging
import threading
from collections import deque
from dataclasses import dataclass

import mlx.core as mx

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling

from .decoder import Decoder, Request
from .models import LoadedModel, Models
from .run import Limits, RecordedRuns, Run
from .states import Message, StateCache, as_messages
from .worker_pool import WorkerPool

LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    run: Run
    request: Request | None  # None: only load the model
    decoder: Decoder | None = None  # from its first step to its last


class Engine:
    """Runs generations one step at a time, up to `limits.active` in turns; others wait in order.

    MLX's streams belong to the thread that made them, so nothing else here touches MLX.

    Args:
        models: The models to choose from.
        limits: Bounds of requests and memory.
    """

    def __init__(self, models: Models, limits: Limits | None = None) -> None:
        self.models, self.limits = models, limits or Limits()
        limits = self.limits
        self.states = StateCache(limits.conversations, limits.boundaries, limits.boundary_bytes)
        self.recorded = RecordedRuns(limits.runs, limits.trace_bytes)
        self._downloads = WorkerPool(threads=2, most=4)
        self._condition = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._active: list[_Job] = []
        self._loaded: dict[str, LoadedModel] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()
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
        """Put a generation into the queue.

        Args:
            model: Name of a model.
            messages: A chat's messages, or a text to continue.
            sampling: How tokens are drawn.
            max_tokens: At most.
            record: True to keep a trace.
            conversation: Id of the cached states to go on from and add to; a secret.

        Raises:
            InputError: Something is not allowed or does not exist, or the queue is full.
        """
        prompt = messages if isinstance(messages, str) else as_messages(messages)
        self._check(prompt, max_tokens)
        request = Request(prompt, sampling, max_tokens, record, conversation)
        return self._enqueue(model, request)

    async def fetch(self, model: str) -> None:
        """Download a model of the hub before it is asked for; other runs go on meanwhile.

        Raises:
            InputError: As `Models.fetch`, or there are too many downloads.
        """
        self.models.check(model)
        if not self.models.is_here(model) and not await self._downloads(self.models.fetch, model):
            raise InputError("the server is busy with other downloads; try again in a moment")

    def prepare(self, model: str) -> Run:
        """Load a model before it is needed; the run has no pieces.

        Raises:
            InputError: As `submit`.
        """
        return self._enqueue(model, None)

    def close(self) -> None:
        """Stop everything and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    def _check(self, prompt: str | tuple[Message, ...], max_tokens: int) -> None:
        limits = self.limits
        texts = [prompt] if isinstance(prompt, str) else [text for _, text in prompt]
        if not isinstance(max_tokens, int) or not 1 <= max_tokens <= limits.max_tokens:
            raise InputError(f"max_tokens: expected 1 to {limits.max_tokens}, got {max_tokens}")
        if len(texts) > limits.messages:
            raise InputError(f"messages: at most {limits.messages}; start a new conversation")
        if (longest := max(map(len, texts))) > limits.characters:
            raise InputError(f"text: {longest} characters, at most {limits.characters} are allowed")
        if (total := sum(map(len, texts))) > limits.conversation_characters:
            most = limits.conversation_characters
            raise InputError(f"messages: {total} characters in all, at most {most} are allowed")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise InputError("text: holds half of a character, a lone surrogate; type it again")

    def _enqueue(self, model: str, request: Request | None) -> Run:
        self.models.check(model)
        run = Run(model, self._cancelled)
        with self._condition:
            if self._closing:
                raise InputError("the engine is shut down")
            if len(self._waiting) >= self.limits.queue:
                waiting = f"{len(self._waiting)} requests are waiting"
                raise InputError(f"the server is busy, {waiting}; try again in a moment")
            self._waiting.append(_Job(run, request))
            if request is not None and request.record:  # the others leave nothing to look at
                self.recorded.put(run)
            self._condition.notify_all()
        return run

    def _cancelled(self, run: Run) -> None:
        with self._condition:
            for job in [job for job in self._waiting if job.run is run]:
                self._waiting.remove(job)
                run.finish()

    def _serve(self) -> None:
        # On a CPU each new shape and each new temperature would be compiled, a second or more.
        compiles = mx.default_device().type != mx.cpu
        if not compiles:
            mx.disable_compile()
        try:
            while self._next_jobs():
                for job in list(self._active):
                    self._advance(job)
        finally:
            for job in [*self._active, *self._waiting]:
                job.run.finish("the engine is shut down")
            self._active.clear()
            self._waiting.clear()
            self._loaded.clear()
            self._free()
            if not compiles:
                mx.enable_compile()
            mx.clear_streams()  # or the process may abort at its end

    def _next_jobs(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._waiting or self._active)
            while self._waiting and len(self._active) < self.limits.active:
                self._active.append(self._waiting.popleft())
            return not self._closing

    def _advance(self, job: _Job) -> None:
        error = None
        try:
            if self._step(job):
                return
        except InputError as problem:
            error = str(problem)
        except Exception:
            LOG.exception("a run of %s failed", job.run.model)
            error = "something went wrong inside; the server's log says what"
        job.decoder = None  # it holds the model
        with self._condition:
            self._active.remove(job)
        if not self._active:
            mx.clear_cache()
        self.recorded.evict()
        job.run.finish(error)

    def _step(self, job: _Job) -> bool:
        """Load the job's model, or let its decoder step; returns whether there is more to do."""
        if job.decoder is not None:
            return job.decoder.step()
        if job.run.stopped:
            return False
        loaded = self._load(job.run.model)
        if job.request is None:
            return False
        job.decoder = Decoder(job.run, loaded, job.request, self.states, self.limits)
        return True

    def _load(self, name: str) -> LoadedModel:
        if name not in self._loaded:
            with self._condition:
                needed = {job.run.model for job in [*self._active, *self._waiting]}
            for other in self._loaded.keys() - needed:  # first, so that there is room
                del self._loaded[other]
            self._free()
            self._loaded[name] = self.models.load(name)
        return self._loaded[name]

    def _free(self) -> None:
        gc.collect()
        mx.clear_cache()
