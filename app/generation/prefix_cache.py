"""A cache of model states after each message, keyed by the messages before it.

Retry, undo and edit need no code of their own: each is a list of messages with a cached prefix.
"""

import sys
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from mlx_gateloop.errors import InputError

from .run import Run

Message = tuple[str, str]  # role, text
Messages = tuple[Message, ...]
Parts = tuple[np.ndarray, ...]  # keys or values, `[1, heads, tokens, size]` each
# conversation, fingerprint of the model, messages before the state
_Key = tuple[str, str, Messages]
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, eq=False)
class PrefixState:
    """The state of a model after some messages."""

    messages: Messages
    text: str  # the messages, rendered by the chat template
    ids: tuple[int, ...]  # the tokens of `text`, as read and generated
    unread: int  # 1 after a prompt: its last token is not in the state, to compute its logits
    states: tuple[np.ndarray, ...]  # constant-size cache entries
    run: "weakref.ref[Run] | None" = None  # the run that made it, if it still exists
    pieces: int = 0  # number of the run's pieces up to this state
    # keys and values of attention layers, in parts that other prefix states share
    keys_values: tuple[Parts, ...] = ()

    def recorded(self) -> Run | None:
        """Return the run whose trace covers this state, if it still exists."""
        run = self.run and self.run()
        return run if run and run.trace and self.pieces <= run.trace.tokens else None

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the parts of keys and values."""
        return chain.from_iterable(self.keys_values)

    @cached_property
    def nbytes(self) -> int:
        """Upper bound of its memory without `keys_values`; prefix states may share texts."""
        texts = (self.text, *(text for _, text in self.messages))
        ids = len(self.ids) * (8 + sys.getsizeof(2**20))
        return ids + sum(map(sys.getsizeof, texts)) + sum(state.nbytes for state in self.states)


START = PrefixState((), "", (), 0, ())  # before the first message


class PrefixCache:
    """LRU cache of the prefix states of conversations; thread-safe."""

    def __init__(self, max_states: int, max_bytes: int) -> None:
        self._max_states, self._max_bytes = max_states, max_bytes
        self._cached: OrderedDict[_Key, PrefixState] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._uses: Counter[int] = Counter()  # by id of a part of keys and values
        self._lock = threading.Lock()

    def put(self, conversation: str, fingerprint: str, prefix: PrefixState) -> bool:
        """Add a state of the model with this fingerprint, and evict the least recently used.

        Return False if the state alone exceeds the memory limit.
        """
        if prefix.nbytes + sum(part.nbytes for part in prefix.parts()) > self._max_bytes:
            return False  # without evicting others
        key = conversation, fingerprint, prefix.messages
        with self._lock:
            self._drop(key)
            self._cached[key] = prefix
            self._count(prefix, 1)
            while len(self._cached) > self._max_states or self._bytes > self._max_bytes:
                self._drop(next(iter(self._cached)))
            return key in self._cached

    def prefixes(
        self, conversation: str, fingerprint: str, messages: Messages, text: str | None = None
    ) -> list[PrefixState]:
        """Return the cached states of prefixes of these messages, shortest first.

        Some templates change earlier messages: given the rendered `text` of all messages, states
        of other texts are omitted.
        """
        keys = [(conversation, fingerprint, messages[:n]) for n in range(1, len(messages) + 1)]
        with self._lock:
            known = [key for key in keys if key in self._cached]
            for key in known:
                self._cached.move_to_end(key)
            found = [self._cached[key] for key in known]
        return [b for b in found if text is None or text.startswith(b.text)]

    def forget(self, conversation: str) -> None:
        with self._lock:
            for key in [key for key in self._cached if key[0] == conversation]:
                self._drop(key)

    def _drop(self, key: _Key) -> None:
        if (prefix := self._cached.pop(key, None)) is not None:
            self._count(prefix, -1)

    def _count(self, prefix: PrefixState, sign: int) -> None:
        """Add or subtract the memory of a prefix; a part shared by several counts once."""
        self._bytes += sign * prefix.nbytes
        for part in prefix.parts():
            others = self._uses.pop(id(part), 0)
            if others + sign:
                self._uses[id(part)] = others + sign
            if others == 0 or others + sign == 0:
                self._bytes += sign * part.nbytes


def as_messages(messages: list[dict[str, str]], complete: bool = True) -> Messages:
    """Check chat messages and return their roles and texts.

    If `complete`, the last message must be the user's, or an answer to continue.
    """
    if not isinstance(messages, list) or not messages:
        raise InputError("messages: expected a list of messages, each with role and content")
    for number, message in enumerate(messages, 1):
        given = message if isinstance(message, dict) else {}
        if given.get("role") not in ROLES or not isinstance(given.get("content"), str):
            expected = "expected a role (system, user or assistant) and a text as content"
            raise InputError(f"messages: number {number}: {expected}")
    if complete and messages[-1]["role"] == "system":
        raise InputError("messages: the last one must be the user's, or an answer to continue")
    return tuple((message["role"], message["content"]) for message in messages)
