"""Conversations are states: kept at every message boundary, so that nothing is read twice.

A boundary is found again by the messages before it. Retry, undo and edit need nothing of their own:
each is a list of messages whose beginning was read before.
"""

import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.run import Run
from mlx_gateloop.errors import InputError

Message = tuple[str, str]  # role, text
MOST_BYTES = 256 * 2**20  # of a file


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


class Conversations:
    """The boundaries of the conversations that were used last; for any thread.

    Args:
        conversations: How many conversations to keep.
        boundaries: How many states of each.
    """

    def __init__(self, conversations: int, boundaries: int) -> None:
        self._most, self._most_boundaries = conversations, boundaries
        self._kept: OrderedDict[str, OrderedDict[Any, Boundary]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, conversation: str, fingerprint: str, boundary: Boundary) -> None:
        """Keep a state of a model, named by its fingerprint."""
        with self._lock:
            kept = self._kept.setdefault(conversation, OrderedDict())
            self._kept.move_to_end(conversation)
            kept[fingerprint, boundary.messages] = boundary
            kept.move_to_end((fingerprint, boundary.messages))
            if len(kept) > self._most_boundaries:
                kept.popitem(last=False)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

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
            keys = [(fingerprint, messages[:n]) for n in range(1, len(messages) + 1)]
            found = [kept[key] for key in keys if key in kept]
            for boundary in found:  # what is in use is evicted last
                kept.move_to_end((fingerprint, boundary.messages))
        return [b for b in found if text is None or text.startswith(b.text)]

    def forget(self, conversation: str) -> None:
        """Drop all its states."""
        with self._lock:
            self._kept.pop(conversation, None)


class _Mark(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    messages: int = Field(ge=1)
    characters: int = Field(ge=0)
    tokens: int = Field(ge=1)
    unread: int = Field(ge=0, le=1)


class Header(BaseModel):
    """What a conversation's file says beside the arrays.

    Args:
        model: Name of the model.
        fingerprint: Of its files.
        messages: Role and text.
        text: As the template writes them.
        marks: Where the states are.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(pattern="^gateloop-conversation-1$")
    model: str
    fingerprint: str
    messages: list[list[str]]
    text: str
    marks: list[_Mark] = Field(min_length=1)


def save(
    path: str | os.PathLike[str], model: str, fingerprint: str, boundaries: list[Boundary]
) -> None:
    """Write states of one conversation, in order, as one safetensors file.

    Raises:
        InputError: There is none, or the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    if not boundaries:
        raise InputError("conversation: nothing of it is kept here; send a message first")
    last = boundaries[-1]
    on_the_way = [
        b for b in boundaries if last.text.startswith(b.text) and last.ids[: len(b.ids)] == b.ids
    ]
    header = Header(
        format="gateloop-conversation-1",
        model=model,
        fingerprint=fingerprint,
        messages=[list(message) for message in last.messages],
        text=last.text,
        marks=[
            _Mark(
                messages=len(b.messages),
                characters=len(b.text),
                tokens=len(b.ids),
                unread=b.unread,
            )
            for b in on_the_way
        ],
    )
    arrays = {"ids": np.array(last.ids, np.int64)}
    for layer in range(len(last.states)):
        arrays[f"states.{layer}"] = np.stack([b.states[layer] for b in on_the_way])
    try:
        save_file(arrays, path, {"conversation": header.model_dump_json()})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


def load(path: str | os.PathLike[str]) -> tuple[Header, list[Boundary]]:
    """Read what `save` wrote, trusting nothing in it.

    Raises:
        InputError: It is not such a file, or it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: larger than {MOST_BYTES >> 20} MB, not a conversation")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise InputError(f"{path}: not a readable conversation file") from error
    try:
        header = Header.model_validate_json(metadata.get("conversation", ""))
        return header, _boundaries(header, arrays)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise InputError(f"{path}: not a conversation: {where}: {first['msg']}") from error
    except _DamagedError as error:
        raise InputError(f"{path}: damaged: {error}") from None


class _DamagedError(Exception):
    pass


def _boundaries(header: Header, arrays: dict[str, np.ndarray]) -> list[Boundary]:
    def check(good: bool, problem: str) -> None:
        if not good:
            raise _DamagedError(problem)

    check(all(len(message) == 2 for message in header.messages), "a message is not role and text")
    messages = tuple((role, text) for role, text in header.messages)
    ids = arrays.pop("ids", np.zeros(0))
    check(ids.dtype == np.int64 and ids.ndim == 1 and bool((ids >= 0).all()), "token ids")
    names = [f"states.{layer}" for layer in range(len(arrays))]
    check(set(names) == arrays.keys(), "unknown arrays")
    for name in names:
        states = arrays[name]
        check(states.dtype == np.float32 and len(states) == len(header.marks), name)
        check(bool(np.isfinite(states).all()), f"{name} is not finite")
    found = []
    for index, mark in enumerate(header.marks):
        check(mark.messages <= len(messages) and mark.tokens <= len(ids), "a mark past the end")
        is_prompt = messages[mark.messages - 1][0] == "user"
        check(mark.unread == is_prompt, "a prompt's last token")
        found.append(
            Boundary(
                messages[: mark.messages],
                header.text[: mark.characters],
                tuple(ids[: mark.tokens].tolist()),
                mark.unread,
                tuple(arrays[name][index] for name in names),
            )
        )
    return found


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
        if role not in ("system", "user", "assistant") or not isinstance(content, str):
            expected = "expected a role (system, user or assistant) and a text as content"
            raise InputError(f"messages: number {index + 1}: {expected}")
    if complete and messages[-1]["role"] != "user":
        raise InputError("messages: the last one must be the user's")
    return tuple((message["role"], message["content"]) for message in messages)
