"""One generation as its reader sees it: tokens, trace and figures that grow while it runs."""

import asyncio
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch import Counterfactual, Trace, total_bytes

T = TypeVar("T")
Steps = Generator[None, None, T]  # other runs take their turns wherever it yields
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+")  # of an absolute path
LOOK_SECONDS = 0.005  # between two looks for the end
MOST_CHARACTERS = 300  # of an error


@dataclass(frozen=True)
class Limits:
    """Limits of the server for pages and programs."""

    characters: int = 16_000  # of one message, and of a completion's text
    messages: int = 400  # of one conversation
    conversation_characters: int = 400_000
    input_tokens: int = 8_192  # read at once
    reread_tokens: int = 2_048  # of a conversation whose trace is lost, to record it again
    max_tokens: int = 1_024  # generated in one run
    queue: int = 16  # runs that wait
    active: int = 4  # runs whose steps are taken in turns
    step_seconds: float = 120.0  # a longer step is stopped
    loading_seconds: float = 900.0  # for a step that loads a model
    runs: int = 8  # finished ones kept to look at
    # all kept traces; in one of more than half, older tokens are kept in groups
    trace_bytes: int = 256 * 2**20
    conversations: int = 32  # with cached states
    boundaries: int = 64  # states cached for one conversation
    boundary_bytes: int = 256 * 2**20  # all cached states, with their texts


@dataclass(frozen=True)
class Token:
    """A token that the model read or wrote; column i of the trace belongs to piece i."""

    text: str  # its contribution to the text; empty within a character of several tokens
    id: int
    kind: Literal["prompt", "answer"]
    # likeliest texts here and their probabilities, best first; none for tokens read
    candidates: tuple[tuple[str, float], ...] = ()
    special: bool = False  # a mark between texts, such as the end of a message
    # where its text begins in the conversation as the template writes it, if known
    begin: int | None = None


@dataclass(frozen=True)
class Place:
    """A message in the conversation as the chat template writes it; empty if unknown."""

    role: str
    begin: int
    end: int | None = None  # None for the answer, which grows
    lead: int = 0  # blanks of the message before `begin`


@dataclass
class Stats:
    """Figures of a run: tokens, seconds, tokens per second, bytes."""

    prompt_tokens: int = 0  # in the conversation before the answer
    prompt_tokens_read: int = 0  # in this run; the others are in the cached state
    tokens: int = 0  # generated
    waiting_seconds: float = 0.0  # in the queue and for the model to be loaded
    first_token_seconds: float = 0.0  # from the start of reading
    prefill_tokens_per_second: float = 0.0  # while reading
    decode_tokens_per_second: float = 0.0  # while generating
    state_bytes: int = 0  # of the model's state; constant
    attention_bytes: int = 0  # of keys and values; they grow
    memory_bytes: int = 0  # held by MLX
    note: str = ""  # why the next message must be read with some before it


@dataclass(eq=False)
class Run:
    """A generation; the engine's thread fills it in, any thread may read it."""

    model: str
    on_cancel: Callable[["Run"], None] = lambda _: None  # called once it is cancelled
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))  # secret key of the run
    prompt: str = ""  # the visitor's text, to name files
    # tokens from the first one in the trace, with those of earlier turns
    pieces: list[Token] = field(default_factory=list)
    begin: int = 0  # index of the first piece of this run
    # transitions at the pieces; while the run continues it may lack the last
    trace: Trace | None = None
    # reasons why layers are not in the trace, by their paths in the model
    unwatched: dict[str, str] = field(default_factory=dict)
    earlier: tuple[int, ...] = ()  # tokens of the conversation before the first piece
    # messages and the answer, in order; empty for a text to continue
    places: tuple[Place, ...] = ()
    sampling: Sampling | None = None  # with the seed that was used
    max_tokens: int = 0
    # the last answers given again without some pieces
    forgotten: list[Counterfactual] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    error: str | None = None  # one line, if the run failed
    stopped: bool = False  # cancelled
    done: bool = False  # nothing changes any more
    submitted: float = field(default_factory=time.perf_counter)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece.text for piece in self.pieces[self.begin :] if piece.kind == "answer")

    @property
    def answer_begin(self) -> int:
        """The index of the first piece of the answer."""
        pieces = self.pieces
        new = range(self.begin, len(pieces))
        return next((i for i in new if pieces[i].kind == "answer"), len(pieces))

    def cancel(self) -> None:
        """Stop it within a token, or at once if it waits; no effect once it is done."""
        if not self.done:
            self.stopped = True
            self.on_cancel(self)

    def finish(self, error: str | None = None) -> None:
        """Mark the end; for the engine. What is wrong comes from models too."""
        self.error = error and public_line(error)
        self.done = True  # last, as others wait for it

    async def ended(self) -> None:
        """Wait for the end, and raise the error as `InputError`; who leaves earlier cancels it."""
        try:
            while not self.done:
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.cancel()
        if self.error:
            raise InputError(self.error)


def public_line(message: str) -> str:
    """Make a line for visitors: without the folders of this machine, and not too long."""
    line = " ".join(message[:10_000].split())
    line = FOLDERS.sub("", line)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


class RecordedRuns:
    """Runs with a trace, the last `most` finished ones; thread-safe."""

    def __init__(self, most: int, nbytes: int) -> None:
        self._most, self._most_bytes = most, nbytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, run: Run) -> None:
        with self._lock:
            self._runs[run.id] = run

    def get(self, id: str) -> Run | None:
        """Return the run of this id, if it is still kept."""
        with self._lock:
            if id in self._runs:
                self._runs.move_to_end(id)
            return self._runs.get(id)

    def evict(self) -> None:
        """Drop finished runs beyond the limits."""
        with self._lock:
            done = [run for run in self._runs.values() if run.done]
            while len(done) > self._most or (done and self._nbytes() > self._most_bytes):
                del self._runs[done.pop(0).id]

    def _nbytes(self) -> int:
        return total_bytes(run.trace for run in self._runs.values())
