"""One generation as its reader sees it: tokens, trace and figures that grow while it runs."""

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from mlx_gateloop.generate import Sampling
from mlx_gateloop.watch import Counterfactual, Trace, total_bytes

T = TypeVar("T")
Steps = Generator[None, None, T]  # other runs take their turns wherever it yields
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+")  # of an absolute path
MOST_CHARACTERS = 300  # of an error


@dataclass(frozen=True)
class Limits:
    """Limits of the server for pages and programs.

    Args:
        characters: Of one message, and of a completion's text.
        messages: Of one conversation.
        conversation_characters: Of all its messages.
        input_tokens: Read at once.
        max_tokens: Generated in one run.
        queue: Runs that wait.
        active: Runs whose steps are taken in turns.
        step_seconds: Of one step; a longer one is given up.
        loading_seconds: Of a step that loads a model.
        runs: Finished runs kept to look at.
        trace_bytes: Of all kept traces together; one may take half of it, where older tokens are
            kept in groups.
        conversations: Whose states are cached.
        boundaries: States cached of one conversation.
        boundary_bytes: Of all cached states together, with their texts.
    """

    characters: int = 16_000
    messages: int = 400
    conversation_characters: int = 400_000
    input_tokens: int = 8_192
    max_tokens: int = 1_024
    queue: int = 16
    active: int = 4
    step_seconds: float = 120.0
    loading_seconds: float = 900.0
    runs: int = 8
    trace_bytes: int = 256 * 2**20
    conversations: int = 32
    boundaries: int = 64
    boundary_bytes: int = 256 * 2**20


@dataclass(frozen=True)
class Token:
    """A token that the model read or wrote; column i of the trace belongs to piece i.

    Args:
        text: Its contribution to the text; empty within a character of several tokens.
        id: In the vocabulary.
        kind: "prompt" or "answer".
        candidates: The likeliest texts for this place with the model's probabilities, best first;
            empty for tokens that were read.
        special: It is a mark between texts and no word, such as the end of a message.
        begin: Where its text begins in the conversation as the chat template writes it, in
            characters; None if that is not known.
    """

    text: str
    id: int
    kind: Literal["prompt", "answer"]
    candidates: tuple[tuple[str, float], ...] = ()
    special: bool = False
    begin: int | None = None


@dataclass(frozen=True)
class Place:
    """A message in the conversation as the chat template writes it, empty if not known where.

    Args:
        role: Of its author.
        begin: Of its text, in characters.
        end: Of its text; None for the answer, which grows.
        lead: Blanks of the message that come before `begin`.
    """

    role: str
    begin: int
    end: int | None = None
    lead: int = 0


@dataclass
class Stats:
    """Figures of a run: tokens, seconds, tokens per second, bytes.

    Args:
        prompt_tokens: In the conversation before the answer.
        prompt_tokens_read: Those of them read in this run; the others are in the cached state.
        tokens: Generated.
        waiting_seconds: In the queue and for the model to be loaded.
        first_token_seconds: From the start of reading to the first token.
        prefill_tokens_per_second: While reading.
        decode_tokens_per_second: While generating.
        state_bytes: Of the model's state; constant.
        attention_bytes: Of keys and values; they grow.
        memory_bytes: That MLX holds.
        note: Why the next message has to be read with some before it.
    """

    prompt_tokens: int = 0
    prompt_tokens_read: int = 0
    tokens: int = 0
    waiting_seconds: float = 0.0
    first_token_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    state_bytes: int = 0
    attention_bytes: int = 0
    memory_bytes: int = 0
    note: str = ""


@dataclass(eq=False)
class Run:
    """A generation; the engine's thread fills it in, any thread may read it.

    Args:
        model: Name of the model.
        on_cancel: Called once it is cancelled.
        id: Key to ask for the run; it cannot be guessed.
        prompt: The visitor's text, to name files.
        pieces: Tokens from the first one in the trace; those of earlier turns come first.
        begin: Index of the first piece of this run.
        trace: The transitions at the pieces, or None; while the run goes on it may lack the last.
        unwatched: Reasons why layers are not in the trace, by their paths in the model.
        earlier: Tokens of the conversation before the first piece.
        places: The conversation's messages and the answer, in order; empty if the text is not of
            messages.
        sampling: How tokens are drawn, with the seed that was used.
        max_tokens: That may be generated.
        forgotten: Answers that were given again without some of the pieces, the last ones;
            `left_out` are places of pieces.
        stats: Figures.
        error: One line, if the run failed.
        stopped: True once it is cancelled.
        done: True once nothing changes any more.
    """

    model: str
    on_cancel: Callable[["Run"], None] = lambda _: None
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    prompt: str = ""
    pieces: list[Token] = field(default_factory=list)
    begin: int = 0
    trace: Trace | None = None
    unwatched: dict[str, str] = field(default_factory=dict)
    earlier: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    sampling: Sampling | None = None
    max_tokens: int = 0
    forgotten: list[Counterfactual] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    error: str | None = None
    stopped: bool = False
    done: bool = False
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


def public_line(message: str) -> str:
    """Make a line for visitors: without the folders of this machine, and not too long."""
    line = " ".join(message[:10_000].split())
    line = FOLDERS.sub("", line)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


class RecordedRuns:
    """Runs with a trace, in least-recently-used order; for any thread.

    Args:
        most: Finished runs to keep.
        nbytes: Memory of all traces together.
    """

    def __init__(self, most: int, nbytes: int) -> None:
        self._most, self._most_bytes = most, nbytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

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
