"""States of conversations, cached at every message boundary, so that nothing is read twice.

A boundary is found by the messages before it. Retry, undo and edit need no code of their own: each
is a list of messages whose beginning was read before.
"""

import sys
import threading
import weakref
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mlx_gateloop.errors import InputError

from .run import Run

Message = tuple[str, str]  # role, text
Parts = tuple[np.ndarray, ...]  # of keys or values, [1, heads, tokens, size] each
_Key = tuple[str, tuple[Message, ...]]  # the model's fingerprint, the messages before the state
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, eq=False)
class Boundary:
    """State of a model between two messages."""

    messages: tuple[Message, ...]
    text: str  # the messages as the model's chat template writes them
    ids: tuple[int, ...]  # the tokens of `text`, as they were read and generated
    unread: int  # tokens at the end of `ids` not in the state: the last of a prompt, for its logits
    states: tuple[np.ndarray, ...]  # cache entries of constant size
    run: "weakref.ref[Run] | None" = None  # the run that made it, while that is kept
    pieces: int = 0  # number of the run's pieces up to here
    # keys and values of attention layers, in parts that other boundaries share
    attended: tuple[Parts, ...] = ()

    def recorded(self) -> Run | None:
        """Return the run whose trace covers this state, if it is kept."""
        run = self.run and self.run()
        return run if run and run.trace and self.pieces <= run.trace.tokens else None

    @cached_property
    def nbytes(self) -> int:
        """Upper bound of its memory without `attended`: other boundaries may share the texts."""
        texts = (self.text, *(text for _, text in self.messages))
        ids = len(self.ids) * (8 + sys.getsizeof(2**20))
        return ids + sum(map(sys.getsizeof, texts)) + sum(state.nbytes for state in self.states)


START = Boundary((), "", (), 0, ())  # before the first message


class StateCache:
    """Boundaries of the conversations that were used last; thread-safe."""

    def __init__(self, conversations: int, boundaries: int, nbytes: int) -> None:
        self._most, self._most_boundaries, self._most_bytes = conversations, boundaries, nbytes
        # Both dicts are in least-recently-used order.
        self._cached: OrderedDict[str, OrderedDict[_Key, Boundary]] = OrderedDict()
        self._bytes = 0
        self._uses: Counter[int] = Counter()  # of parts of keys and values
        self._lock = threading.Lock()

    def put(self, conversation: str, fingerprint: str, boundary: Boundary) -> bool:
        """Add a state of the model with this fingerprint, and drop what was used least recently.

        Return False if it takes more memory than there is for all.
        """
        attended = sum(part.nbytes for parts in boundary.attended for part in parts)
        if boundary.nbytes + attended > self._most_bytes:
            return False  # before the states of others are dropped for it
        with self._lock:
            cached = self._cached.setdefault(conversation, OrderedDict())
            self._cached.move_to_end(conversation)
            key = fingerprint, boundary.messages
            self._drop(cached, key)
            cached[key] = boundary
            self._count(boundary, 1)
            if len(cached) > self._most_boundaries:
                self._drop(cached, next(iter(cached)))
            while len(self._cached) > self._most or self._bytes > self._most_bytes:
                name, oldest = next(iter(self._cached.items()))
                self._drop(oldest, next(iter(oldest)))
                if not oldest:
                    del self._cached[name]
            return key in cached

    def _drop(self, cached: OrderedDict[_Key, Boundary], key: _Key) -> None:
        if (boundary := cached.pop(key, None)) is not None:
            self._count(boundary, -1)

    def _count(self, boundary: Boundary, sign: int) -> None:
        """Add or subtract the memory of a boundary; a part counts while any boundary has it."""
        self._bytes += sign * boundary.nbytes
        for part in (part for parts in boundary.attended for part in parts):
            others = self._uses.pop(id(part), 0)
            if others + sign:
                self._uses[id(part)] = others + sign
            if others == 0 or others + sign == 0:
                self._bytes += sign * part.nbytes

    def prefixes(
        self,
        conversation: str,
        fingerprint: str,
        messages: tuple[Message, ...],
        text: str | None = None,
    ) -> list[Boundary]:
        """Return the cached states of the beginnings of these messages, shortest first.

        Given the `text` that the template makes of all messages, states of other texts are left
        out: some templates change earlier messages.
        """
        with self._lock:
            cached = self._cached.get(conversation, OrderedDict())
            if cached:
                self._cached.move_to_end(conversation)
            keys = [(fingerprint, messages[:n]) for n in range(1, len(messages) + 1)]
            found = [cached[key] for key in keys if key in cached]
            for boundary in found:
                cached.move_to_end((fingerprint, boundary.messages))
        return [b for b in found if text is None or text.startswith(b.text)]

    def forget(self, conversation: str) -> None:
        """Drop all states of a conversation."""
        with self._lock:
            for boundary in self._cached.pop(conversation, {}).values():
                self._count(boundary, -1)


def as_messages(messages: list[dict[str, str]], complete: bool = True) -> tuple[Message, ...]:
    """Check chat messages and return their roles and texts.

    If `complete`, the last message must be the user's.
    """
    if not isinstance(messages, list) or not messages:
        raise InputError("messages: expected a list of messages, each with role and content")
    for index, message in enumerate(messages):
        role, content = (
            (message.get("role"), message.get("content")) if isinstance(message, dict) else (0, 0)
        )
        if role not in ROLES or not isinstance(content, str):
            expected = "expected a role (system, user or assistant) and a text as content"
            raise InputError(f"messages: number {index + 1}: {expected}")
    if complete and messages[-1]["role"] != "user":
        raise InputError("messages: the last one must be the user's")
    return tuple((message["role"], message["content"]) for message in messages)
