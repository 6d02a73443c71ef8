"""The engine: one thread that loads models and runs all MLX work, for everyone in turns."""

import atexit
import gc
import logging
import os
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch.trace import total_bytes

from ..conversations import file as files
from .decoder import Request, decode
from .models import LoadedModel, Models
from .run import Limits, Run, Stats, Token
from .states import Conversations, as_messages
from .worker_pool import Desk

__all__ = ["Engine", "Limits", "Run", "Sampling", "Stats", "Token"]
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Job:
    run: Run
    steps: Iterator[None]


class Engine:
    """Runs generations one step at a time, up to `limits.active` in turns; others wait in order.

    MLX's streams belong to the thread that made them, so nothing else here touches MLX.

    Args:
        models: Which models there are.
        limits: What is allowed.
    """

    def __init__(self, models: Models, limits: Limits | None = None) -> None:
        self.models, self.limits = models, limits or Limits()
        self._conversations = Conversations(
            self.limits.conversations, self.limits.boundaries, self.limits.boundary_bytes
        )
        self._hub = Desk(threads=2, most=4)
        self._condition = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._active: list[_Job] = []
        self._runs: OrderedDict[str, Run] = OrderedDict()
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
        """Ask for a generation; it is put into the queue.

        Args:
            model: Name of a model.
            messages: A chat's messages, or a text to continue.
            sampling: How tokens are drawn.
            max_tokens: At most.
            record: Whether to keep a trace.
            conversation: Whose states to go on from and add to; a secret that `secrets` made.

        Raises:
            InputError: Something is not allowed or does not exist, or the queue is full.
        """
        prompt = messages if isinstance(messages, str) else as_messages(messages)
        self._check(prompt, max_tokens)
        request = Request(prompt, sampling, max_tokens, record, conversation)
        return self._enqueue(model, request)

    async def fetch(self, model: str) -> None:
        """Bring a model of the hub here before it is asked for; the others wait for nothing.

        Raises:
            InputError: As `Models.fetch`, or too many are being fetched.
        """
        self.models.check(model)
        if not self.models.is_here(model) and not await self._hub(self.models.fetch, model):
            raise InputError("the server is busy with other downloads; try again in a moment")

    def prepare(self, model: str) -> Run:
        """Load a model before it is needed; the run has no pieces.

        Raises:
            InputError: As `submit`.
        """
        return self._enqueue(model, None)

    def run(self, id: str) -> Run | None:
        """A recorded run by its id, as long as it is kept: those looked at last are."""
        with self._condition:
            if id in self._runs:
                self._runs.move_to_end(id)
            return self._runs.get(id)

    def save_conversation(
        self,
        conversation: str,
        model: str,
        messages: list[dict[str, str]],
        path: str | os.PathLike[str],
        most_bytes: int = files.MOST_BYTES,
    ) -> None:
        """Write these messages to a file, with the states that are kept on the way to them.

        Args:
            conversation: Its id.
            model: Name of the model.
            messages: All of them.
            path: The file.
            most_bytes: Of the file.

        Raises:
            InputError: The file would be larger, or cannot be written.
        """
        fingerprint = self.models.fingerprint(model)
        pairs = as_messages(messages, complete=False)
        found = self._conversations.path(conversation, fingerprint, pairs, None)
        files.save(path, model, fingerprint, pairs, found, most_bytes)

    def load_conversation(
        self, path: str | os.PathLike[str]
    ) -> tuple[str, str, list[dict[str, str]]]:
        """Read such a file, under a new id.

        Returns:
            The conversation's id, the model's name and the messages.

        Raises:
            InputError: The file is not one, or of a model that is not here.
        """
        header, boundaries = files.load(path)
        info = self.models.info(header.model)
        if self.models.fingerprint(header.model) != header.fingerprint:
            raise InputError(
                f"{path}: was made with another model than {header.model!r} is now; its states "
                "mean nothing to this one"
            )
        for boundary in boundaries:
            shapes = {state.shape for state in boundary.states}
            if len(boundary.states) != info.layers or shapes != {info.state_shape}:
                raise InputError(f"{path}: damaged: its states are not of {header.model!r}")
            if max(boundary.ids) >= info.vocab_size:
                raise InputError(f"{path}: damaged: token ids")
        conversation = secrets.token_urlsafe(16)
        for boundary in boundaries:
            self._conversations.put(conversation, header.fingerprint, boundary)
        messages = [{"role": role, "content": text} for role, text in header.messages]
        return conversation, header.model, messages

    def forget(self, conversation: str) -> None:
        """Drop a conversation's states."""
        self._conversations.forget(conversation)

    def close(self) -> None:
        """Stop everything and end the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    def _check(self, prompt: str | tuple[tuple[str, str], ...], max_tokens: int) -> None:
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
        run = Run(model)
        run._on_cancel = self._cancelled
        with self._condition:
            if self._closing:
                raise InputError("the engine is shut down")
            if len(self._waiting) >= self.limits.queue:
                waiting = f"{len(self._waiting)} requests are waiting"
                raise InputError(f"the server is busy, {waiting}; try again in a moment")
            self._waiting.append(_Job(run, self._work(run, request)))
            if request is not None and request.record:  # the others leave nothing to look at
                self._runs[run.id] = run
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
            next(job.steps)
            return
        except StopIteration:
            pass
        except InputError as problem:
            error = str(problem)
        except Exception:
            LOG.exception("a run of %s failed", job.run.model)
            error = "something went wrong inside; the server's log says what"
        with self._condition:
            self._active.remove(job)
        if not self._active:
            mx.clear_cache()
        self._evict()
        job.run.finish(error)

    def _work(self, run: Run, request: Request | None) -> Iterator[None]:
        if run.stopped:
            return
        loaded = self._load(run.model)
        yield
        if request is not None and not run.stopped:
            yield from decode(run, loaded, request, self._conversations, self.limits)

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

    def _evict(self) -> None:
        with self._condition:
            done = [run for run in self._runs.values() if run.done]
            while len(done) > self.limits.runs or (
                done
                and total_bytes(run.trace for run in self._runs.values()) > self.limits.trace_bytes
            ):
                del self._runs[done.pop(0).id]
