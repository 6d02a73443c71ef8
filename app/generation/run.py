"""A generation: its tokens, trace and statistics, which grow while it runs."""

import asyncio
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from mlx_gateloop.errors import InputError, shortened
from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch import Counterfactual, Trace
from mlx_gateloop.watch.storage import total_bytes

T = TypeVar("T")
Steps = Generator[None, None, T]  # other runs advance at each yield
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+")  # the folders in an absolute path
POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Limits:
    """Limits for pages and programs."""

    characters: int = 16_000  # in one message or one completion's text
    messages: int = 400  # in one conversation
    conversation_characters: int = 400_000
    input_tokens: int = 8_192  # new tokens of one prompt
    reread_tokens: int = 2_048  # longest conversation to read again if its trace is lost
    max_tokens: int = 1_024  # generated in one run
    queue: int = 16  # waiting runs
    active: int = 4  # runs that advance in turn
    step_seconds: float = 120.0  # limit of one step
    loading_seconds: float = 900.0  # limit of a step that loads a model
    runs: int = 8  # finished runs with traces
    # all traces; a trace larger than half of this groups its older tokens
    trace_bytes: int = 256 * 2**20
    conversations: int = 32  # chats that a reloaded page finds
    prefix_states: int = 2_048  # cached states of all conversations
    prefix_bytes: int = 256 * 2**20  # all cached states and their texts


@dataclass(frozen=True)
class Token:
    """A token that the model read or generated; row i of the trace belongs to piece i."""

    text: str  # empty inside a character of several tokens
    id: int
    kind: Literal["prompt", "answer"]
    # likeliest texts and their probabilities, best first; empty for prompt tokens
    candidates: tuple[tuple[str, float], ...] = ()
    special: bool = False  # a control token, such as the end of a message
    # start of its text in the rendered conversation, if known
    begin: int | None = None


@dataclass(frozen=True)
class MessageSpan:
    """The span of a message in the rendered conversation; empty if unknown."""

    role: str
    begin: int
    end: int | None = None  # None for the answer, which grows
    lead: int = 0  # whitespace of the message before `begin`


@dataclass
class Stats:
    """Statistics of a run: tokens, seconds, tokens per second, bytes."""

    prompt_tokens: int = 0  # in the conversation before the answer
    prompt_tokens_read: int = 0  # by this run; the cached state covers the rest
    tokens: int = 0  # generated
    guessed: int = 0  # those that earlier text proposed
    waiting_seconds: float = 0.0  # in the queue and while the model loads
    first_token_seconds: float = 0.0  # from the start of reading
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    state_bytes: int = 0  # recurrent state; constant
    attention_bytes: int = 0  # keys and values; they grow
    memory_bytes: int = 0  # allocated by MLX
    note: str = ""  # why the next turn must read earlier messages again


@dataclass(eq=False)
class Run:
    """A generation; the engine's thread writes it, any thread may read it."""

    model: str
    on_cancel: Callable[["Run"], None] = lambda _: None  # called on cancellation
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))  # secret
    prompt: str = ""  # the user's text, for file names
    # all tokens in the trace, including those of earlier turns
    pieces: list[Token] = field(default_factory=list)
    begin: int = 0  # index of the first piece of this run
    # transitions of the pieces; may lag behind while the run continues
    trace: Trace | None = None
    # reasons why layers are not in the trace, by path in the model
    unwatched: dict[str, str] = field(default_factory=dict)
    earlier: tuple[int, ...] = ()  # tokens of the conversation before the first piece
    # spans of the messages and the answer; empty for a text to continue
    message_spans: tuple[MessageSpan, ...] = ()
    # likeliest texts after the last piece and their probabilities, once the run has stopped
    following: tuple[tuple[str, float], ...] = ()
    sampling: Sampling | None = None  # with the seed that was used
    state: Any = None  # the `StateFile` from which it began
    starting: list[np.ndarray] = field(default_factory=list)  # its states, if `trace` follows them
    left: float | None = None  # the share of them that is left
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    # the latest answers without some pieces
    counterfactuals: list[Counterfactual] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    # what ended the answer: its last token, the limit or a stop string; "" if it was cancelled
    reason: Literal["", "end", "limit", "stop"] = ""
    error: str | None = None  # one line, if the run failed
    stopped: bool = False  # cancelled
    done: bool = False  # no more changes
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece.text for piece in self.pieces[self.begin :] if piece.kind == "answer")

    @property
    def answer_begin(self) -> int:
        """Index of the first piece of the answer."""
        pieces = self.pieces
        new = range(self.begin, len(pieces))
        return next((i for i in new if pieces[i].kind == "answer"), len(pieces))

    def cancel(self) -> None:
        """Stop within a token, or at once if the run is waiting; no effect after its end."""
        if not self.done:
            self.stopped = True
            self.on_cancel(self)

    def finish(self, error: str | None = None) -> None:
        """Finish the run. `error` may contain model output, so it is sanitised."""
        self.error = error and public_line(error)
        self.done = True  # set last: other threads wait for it

    async def ended(self, is_left: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Wait for the end and raise the run's error; cancelling this cancels the run.

        So does a client that has left.
        """
        try:
            while not (self.done or (is_left and await is_left())):
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self.cancel()
        if self.error:
            raise InputError(self.error)


def public_line(message: str) -> str:
    """Make a short line for users, without folders of this machine."""
    return shortened(FOLDERS.sub("", message[:10_000]))


class RecordedRuns:
    """Runs with a trace, the last `max_runs` finished ones; thread-safe."""

    def __init__(self, max_runs: int, max_bytes: int) -> None:
        self._max_runs, self._max_bytes = max_runs, max_bytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, run: Run) -> None:
        with self._lock:
            self._runs[run.id] = run

    def get(self, id: str) -> Run | None:
        """Return the run with this id if it is still here."""
        with self._lock:
            if id in self._runs:
                self._runs.move_to_end(id)
            return self._runs.get(id)

    def evict(self) -> None:
        """Drop finished runs beyond the limits."""
        with self._lock:
            done = [run for run in self._runs.values() if run.done]
            while len(done) > self._max_runs or (
                done and total_bytes(run.trace for run in self._runs.values()) > self._max_bytes
            ):
                del self._runs[done.pop(0).id]
