"""Conversations are states: kept at every message boundary, so that nothing is read twice.

A boundary is found again by the messages before it. Retry, undo and edit need nothing of their own:
each is a list of messages whose beginning was read before.
"""

import sys
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlx_gateloop.errors import InputError

from .run import Run

Message = tuple[str, str]  # role, text
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, eq=False)
class Boundary:
    """The state of a model between two messages.

    Args:
        messages: What was said.
        text: The same as the model's chat template writes it.
        ids: The tokens of `text`, as they were read and generated.
        unread: Tokens at the end of `ids` that the state has not seen: the last one of a prompt,
            because what follows is drawn from what the model makes of it.
        states: One array a layer.
        run: The run that came here, as long as it is kept.
        pieces: How many of its pieces led here.
    """

    messages: tuple[Message, ...]
    text: str
    ids: tuple[int, ...]
    unread: int
    states: tuple[np.ndarray, ...]
    run: "weakref.ref[Run] | None" = None
    pieces: int = 0

    @cached_property
    def nbytes(self) -> int:
        """Memory, at most: other boundaries may share the texts."""
        texts = (self.text, *(text for _, text in self.messages))
        ids = len(self.ids) * (8 + sys.getsizeof(2**20))
        return ids + sum(map(sys.getsizeof, texts)) + sum(state.nbytes for state in self.states)


NOTHING = Boundary((), "", (), 0, ())  # before the first message


class Conversations:
    """The boundaries of the conversations that were used last; for any thread.

    Args:
        conversations: How many conversations to keep.
        boundaries: How many states of each.
        nbytes: Memory of all together.
    """

    def __init__(self, conversations: int, boundaries: int, nbytes: int) -> None:
        self._most, self._most_boundaries, self._most_bytes = conversations, boundaries, nbytes
        # Both orders are of use, the last one used at the end.
        self._kept: OrderedDict[str, OrderedDict[Any, Boundary]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, conversation: str, fingerprint: str, boundary: Boundary) -> None:
        """Keep a state of a model, named by its fingerprint."""
        with self._lock:
            kept = self._kept.setdefault(conversation, OrderedDict())
            self._kept.move_to_end(conversation)
            key = fingerprint, boundary.messages
            self._drop(kept, key)
            kept[key] = boundary
            self._bytes += boundary.nbytes
            if len(kept) > self._most_boundaries:
                self._drop(kept, next(iter(kept)))
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                name, oldest = next(iter(self._kept.items()))
                self._drop(oldest, next(iter(oldest)))
                if not oldest:
                    del self._kept[name]

    def _drop(self, kept: OrderedDict[Any, Boundary], key: Any) -> None:
        if (boundary := kept.pop(key, None)) is not None:
            self._bytes -= boundary.nbytes

    def path(
        self, conversation: str, fingerprint: str, messages: tuple[Message, ...], text: str | None
    ) -> list[Boundary]:
        """The kept states on the way to these messages, the first one first.

        Args:
            conversation: Its id.
            fingerprint: Of the model.
            messages: All of them.
            text: The same as the template writes it, because some templates change what was said
                before; None takes every state.
        """
        with self._lock:
            kept = self._kept.get(conversation, OrderedDict())
            if kept:
                self._kept.move_to_end(conversation)
            keys = [(fingerprint, messages[:n]) for n in range(1, len(messages) + 1)]
            found = [kept[key] for key in keys if key in kept]
            for boundary in found:  # what is in use is evicted last
                kept.move_to_end((fingerprint, boundary.messages))
        return [b for b in found if text is None or text.startswith(b.text)]

    def forget(self, conversation: str) -> None:
        """Drop all its states."""
        with self._lock:
            for boundary in self._kept.pop(conversation, {}).values():
                self._bytes -= boundary.nbytes


def as_messages(messages: list[dict[str, str]], complete: bool = True) -> tuple[Message, ...]:
    """Role and text of chat messages, checked.

    Args:
        messages: Each with "role" and "content".
        complete: Whether the user's message must be the last.

    Raises:
        InputError: Something else than roles and texts, or no question at the end.
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
