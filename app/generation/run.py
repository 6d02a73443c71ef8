"""One generation as its reader sees it: pieces, trace and figures that grow while it runs."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mlx_gateloop.watch.trace import Trace


@dataclass(frozen=True)
class Limits:
    """What the server allows, whatever a page or a program asks for.

    Args:
        characters: Of one message, and of a completion's text.
        messages: Of one conversation.
        conversation_characters: Of all its messages.
        input_tokens: Read at once.
        max_tokens: Generated in one run.
        queue: Runs that wait.
        active: Runs whose steps are taken in turns.
        runs: Finished runs kept to look at.
        trace_bytes: Of all kept traces together; of one, half of it.
        conversations: Whose states are kept.
        boundaries: States kept of one conversation.
        boundary_bytes: Of all kept states together, with their texts.
    """

    characters: int = 16_000
    messages: int = 400
    conversation_characters: int = 400_000
    input_tokens: int = 8_192
    max_tokens: int = 1_024
    queue: int = 16
    active: int = 4
    runs: int = 8
    trace_bytes: int = 256 * 2**20
    conversations: int = 32
    boundaries: int = 64
    boundary_bytes: int = 256 * 2**20


@dataclass(frozen=True)
class Token:
    """A token that the model read or wrote; column i of the trace belongs to piece i.

    Args:
        text: What it adds to the text; empty within a character of several tokens.
        id: In the vocabulary.
        kind: "prompt" or "answer".
        candidates: The likeliest texts for this place with the model's probabilities, best first;
            empty for tokens that were read.
    """

    text: str
    id: int
    kind: Literal["prompt", "answer"]
    candidates: tuple[tuple[str, float], ...] = ()


@dataclass
class Stats:
    """What a run took: tokens, seconds, tokens per second, bytes.

    Args:
        prompt_tokens: In the conversation before the answer.
        prompt_tokens_read: Of these, read now; the others are in the state that it went on from.
        tokens: Generated.
        waiting_seconds: In the queue and for the model to be loaded.
        first_token_seconds: From the start of reading to the first token.
        prefill_tokens_per_second: While reading.
        decode_tokens_per_second: While generating.
        state_bytes: Of the model's memory; constant.
        memory_bytes: That MLX holds.
    """

    prompt_tokens: int = 0
    prompt_tokens_read: int = 0
    tokens: int = 0
    waiting_seconds: float = 0.0
    first_token_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    state_bytes: int = 0
    memory_bytes: int = 0


@dataclass(eq=False)
class Run:
    """A generation; the engine's thread fills it in, any thread may read it.

    Args:
        model: Name of the model.
        id: What the run can be asked for by; it can't be guessed.
        pieces: Tokens from the first one that the trace knows; those of earlier turns come first.
        begin: Index of the first piece of this run.
        trace: The transitions at the pieces, or None; while the run goes on it may lack the last.
        stats: Figures.
        error: One line, if the run failed.
        stopped: Whether it was cancelled.
        done: Nothing changes any more.
    """

    model: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    pieces: list[Token] = field(default_factory=list)
    begin: int = 0
    trace: Trace | None = None
    stats: Stats = field(default_factory=Stats)
    error: str | None = None
    stopped: bool = False
    done: bool = False
    submitted: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._on_cancel: Callable[[Run], None] = lambda _: None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(piece.text for piece in self.pieces[self.begin :] if piece.kind == "answer")

    def cancel(self) -> None:
        """Stop it: within a token if it runs, at once if it waits; nothing if it is done."""
        if not self.done:
            self.stopped = True
            self._on_cancel(self)

    def wait(self, since: int, timeout: float) -> int:
        """Block until there are more pieces than `since`, the run is done, or seconds are over.

        Returns:
            How many pieces there are.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.done or len(self.pieces) > since, timeout)
            return len(self.pieces)

    def add(self, pieces: list[Token]) -> None:
        """Append pieces and wake who waits; the engine's."""
        with self._changed:
            self.pieces += pieces
            self._changed.notify_all()

    def finish(self, error: str | None = None) -> None:
        """Nothing comes any more; the engine's."""
        with self._changed:
            self.error, self.done = error, True
            self._changed.notify_all()
