"""A cache of model states after each message, keyed by the messages before it.

Retry, undo and edit need no code of their own: each is a list of messages with a cached prefix.
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
Parts = tuple[np.ndarray, ...]  # keys or values, `[1, heads, tokens, size]` each
_Key = tuple[str, tuple[Message, ...]]  # fingerprint of the model, messages before the state
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, eq=False)
class PrefixState:
    """The state of a model after some messages."""

    messages: tuple[Message, ...]
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

    @cached_property
    def nbytes(self) -> int:
        """Upper bound of its memory without `keys_values`; prefix states may share texts."""
        texts = (self.text, *(text for _, text in self.messages))
        ids = len(self.ids) * (8 + sys.getsizeof(2**20))
        return ids + sum(map(sys.getsizeof, texts)) + sum(state.nbytes for state in self.states)


START = PrefixState((), "", (), 0, ())  # before the first message


class PrefixCache:
    """LRU cache of the prefix states of conversations; thread-safe."""

    def __init__(self, conversations: int, prefix_states: int, max_bytes: int) -> None:
        self._max_conversations, self._max_bytes = conversations, max_bytes
        self._max_prefix_states = prefix_states
        # Both dicts are in least-recently-used order.
        self._cached: OrderedDict[str, OrderedDict[_Key, PrefixState]] = OrderedDict()
        self._bytes = 0
        self._uses: Counter[int] = Counter()  # by id of a part of keys and values
        self._lock = threading.Lock()

    def put(self, conversation: str, fingerprint: str, prefix: PrefixState) -> bool:
        """Add a state of the model with this fingerprint, and evict the least recently used.

        Return False if the state alone exceeds the memory limit.
        """
        part_bytes = sum(part.nbytes for parts in prefix.keys_values for part in parts)
        if prefix.nbytes + part_bytes > self._max_bytes:
            return False  # without evicting others
        with self._lock:
            cached = self._cached.setdefault(conversation, OrderedDict())
            self._cached.move_to_end(conversation)
            key = fingerprint, prefix.messages
            self._drop(cached, key)
            cached[key] = prefix
            self._count(prefix, 1)
            if len(cached) > self._max_prefix_states:
                self._drop(cached, next(iter(cached)))
            while len(self._cached) > self._max_conversations or self._bytes > self._max_bytes:
                name, oldest = next(iter(self._cached.items()))
                self._drop(oldest, next(iter(oldest)))
                if not oldest:
                    del self._cached[name]
            return key in cached

    def _drop(self, cached: OrderedDict[_Key, PrefixState], key: _Key) -> None:
        if (prefix := cached.pop(key, None)) is not None:
            self._count(prefix, -1)

    def _count(self, prefix: PrefixState, sign: int) -> None:
        """Add or subtract the memory of a prefix; a part shared by several counts once."""
        self._bytes += sign * prefix.nbytes
        for part in (part for parts in prefix.keys_values for part in parts):
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
    ) -> list[PrefixState]:
        """Return the cached states of prefixes of these messages, shortest first.

        Some templates change earlier messages: given the rendered `text` of all messages, states
        of other texts are omitted.
        """
        with self._lock:
            cached = self._cached.get(conversation, OrderedDict())
            if cached:
                self._cached.move_to_end(conversation)
            keys = [(fingerprint, messages[:n]) for n in range(1, len(messages) + 1)]
            found = [cached[key] for key in keys if key in cached]
            for prefix in found:
                cached.move_to_end((fingerprint, prefix.messages))
        return [b for b in found if text is None or text.startswith(b.text)]

    def forget(self, conversation: str) -> None:
        """Drop all states of a conversation."""
        with self._lock:
            for prefix in self._cached.pop(conversation, {}).values():
                self._count(prefix, -1)


def as_messages(messages: list[dict[str, str]], complete: bool = True) -> tuple[Message, ...]:
    """Check chat messages and return their roles and texts.

    If `complete`, the last message must be the user's, or an answer to continue.
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
    if complete and messages[-1]["role"] == "system":
        raise InputError("messages: the last one must be the user's, or an answer to continue")
    return tuple((message["role"], message["content"]) for message in messages)
