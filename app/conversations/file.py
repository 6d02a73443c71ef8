"""A conversation in one safetensors file: its messages and cached states."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import checksum, replacing

from ..generation.caches import LENGTH
from ..generation.models import Models
from ..generation.prefix_cache import ROLES, START, Message, PrefixCache, PrefixState, as_messages
from ..generation.run import Limits

DTYPES = (np.float32, np.float16, np.uint16)
MAX_BYTES = 256 * 2**20  # file size
MAX_MESSAGES = Limits().messages + 1  # the last one is an answer
MAX_BRANCHES = 20
MAX_CHARACTERS = 4 * Limits().conversation_characters  # includes what templates add

_Role = Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]


class _Mark(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    messages: int = Field(ge=1)
    characters: int = Field(ge=0)
    tokens: int = Field(ge=1)
    unread: int = Field(ge=0, le=1)


class Header(BaseModel):
    """Metadata of a conversation file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(pattern="^gateloop-conversation-1$")
    model: str
    fingerprint: str  # the model's
    # roles and texts of the whole chat
    messages: list[tuple[_Role, str]] = Field(min_length=1, max_length=MAX_MESSAGES)
    text: str  # the rendered messages up to the last state
    # positions of the states; the model reads later messages again
    marks: list[_Mark] = Field(max_length=MAX_MESSAGES)
    # the messages as they were before a retry, an edit or an undo
    branches: list[list[tuple[_Role, str]]] = Field([], max_length=MAX_BRANCHES)


def save(
    path: Path,
    conversation: str,
    model: str,
    messages: list[dict[str, str]],
    models: Models,
    prefix_cache: PrefixCache,
    max_bytes: int = MAX_BYTES,
    branches: Sequence[list[dict[str, str]]] = (),
) -> None:
    """Write a conversation with its cached states, or without them if they are too large.

    Without them, the model must read the messages again.

    Raises:
        InputError: The file would exceed `max_bytes`, or cannot be written.
    """
    fingerprint = models.fingerprint(model)
    pairs = as_messages(messages, complete=False)
    prefix_states = prefix_cache.prefixes(conversation, fingerprint, pairs)
    others = [as_messages(branch, complete=False) for branch in branches[-MAX_BRANCHES:]]
    content = _encode(model, fingerprint, pairs, prefix_states, others)
    if len(content) > max_bytes:
        content = _encode(model, fingerprint, pairs, [], others)
    if len(content) > max_bytes:
        need = f"{len(content) / 2**20:.1f} MB, {max_bytes / 2**20:.1f} MB are left"
        raise InputError(f"{path.stem}: not saved: needs {need}; delete saved conversations")
    try:
        with replacing(path) as new:
            new.touch(0o600)  # other users of this machine cannot read it
            new.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path.stem}: cannot be written: {error.strerror or error}") from error


def load(
    path: Path, models: Models, prefix_cache: PrefixCache
) -> tuple[str, str, list[dict[str, str]], list[list[dict[str, str]]]]:
    """Read a conversation and cache its states under a new id.

    Returns the id, the model's name, the messages and the branches.

    Raises:
        InputError: The file is not a conversation, or its model is missing or has changed.
    """
    header, prefix_states = read(path)
    info = models.info(header.model)
    if models.fingerprint(header.model) != header.fingerprint:
        raise InputError(
            f"{path.stem}: the model {header.model!r} has changed; the saved states do not fit"
        )
    # other types of models check their states when they are loaded
    for prefix in prefix_states if info.state_shape is not None else ():
        shapes = {state.shape for state in prefix.states}
        if len(prefix.states) != info.layers or shapes != {info.state_shape}:
            raise InputError(f"{path.stem}: damaged: its states do not fit {header.model!r}")
        if max(prefix.ids) >= info.vocab_size:
            raise InputError(f"{path.stem}: damaged: token ids")
    conversation = secrets.token_urlsafe(16)
    for prefix in prefix_states:
        prefix_cache.put(conversation, header.fingerprint, prefix)
    messages, *branches = (
        [{"role": role, "content": text} for role, text in pairs]
        for pairs in (header.messages, *header.branches)
    )
    return conversation, header.model, messages, branches


def text(path: Path) -> str:
    """Read the messages of a file as JSON; empty if it is no conversation."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            return str((opened.metadata() or {}).get("conversation", ""))
    except (OSError, SafetensorError):
        return ""


def read(path: Path) -> tuple[Header, list[PrefixState]]:
    """Read and validate a file that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.stem}: larger than {MAX_BYTES >> 20} MB, not a conversation")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            text = metadata.get("conversation", "")
            header = Header.model_validate_json(text)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("sha256") != checksum(sorted(arrays.items()), text):
            raise InputError(f"{path.stem}: damaged: wrong checksum")
        return header, _prefix_states(path.stem, header, arrays)
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise InputError(f"{path.stem}: not a readable conversation file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise InputError(f"{path.stem}: not a conversation: {where}: {first['msg']}") from error


def _encode(
    model: str,
    fingerprint: str,
    messages: tuple[Message, ...],
    prefix_states: list[PrefixState],
    branches: list[tuple[Message, ...]],
) -> bytes:
    from safetensors.numpy import save as encode

    last = prefix_states[-1] if prefix_states else START
    prefixes = [
        b for b in prefix_states if last.text.startswith(b.text) and last.ids[: len(b.ids)] == b.ids
    ]
    header = Header(
        format="gateloop-conversation-1",
        model=model,
        fingerprint=fingerprint,
        messages=list(messages),
        branches=list(map(list, branches)),
        text=last.text,
        marks=[
            _Mark(
                messages=len(b.messages), characters=len(b.text), tokens=len(b.ids), unread=b.unread
            )
            for b in prefixes
        ],
    )
    arrays = {"ids": np.array(last.ids, np.int64)}
    for layer in range(len(last.states)):
        arrays[f"states.{layer}"] = np.stack([b.states[layer] for b in prefixes])
    for index, parts in enumerate(last.keys_values):
        arrays[f"keys_values.{index}"] = np.concatenate(parts, LENGTH)
    try:
        text = header.model_dump_json()
        sha256 = checksum(sorted(arrays.items()), text)
        return encode(arrays, {"conversation": text, "sha256": sha256})
    except ValueError:  # not valid in UTF-8
        raise InputError("messages: one contains a lone surrogate; type it again") from None


def _prefix_states(stem: str, header: Header, arrays: dict[str, np.ndarray]) -> list[PrefixState]:
    def check(good: bool, problem: str) -> None:
        if not good:
            raise InputError(f"{stem}: damaged: {problem}")

    versions = [header.messages, *header.branches]
    characters = len(header.text) + sum(len(text) for pairs in versions for _, text in pairs)
    check(characters <= MAX_CHARACTERS * len(versions), f"more than {MAX_CHARACTERS} characters")
    messages = tuple(header.messages)
    ids = arrays.pop("ids", np.zeros(0))
    check(ids.dtype == np.int64 and ids.ndim == 1 and bool((ids >= 0).all()), "token ids")
    names = [f"states.{i}" for i in range(sum(name.startswith("states.") for name in arrays))]
    keys_values = [f"keys_values.{i}" for i in range(len(arrays) - len(names))]
    check({*names, *keys_values} == arrays.keys(), "unknown arrays")
    for name in names:
        states = arrays[name]
        check(states.dtype in DTYPES and len(states) == len(header.marks), name)
        check(_is_finite(states), f"{name} is not finite")
    seen = [mark.tokens - mark.unread for mark in header.marks]
    for name in keys_values:
        array = arrays[name]
        check(array.dtype in DTYPES and array.ndim == 4, name)
        check(seen == sorted(seen) and seen[-1:] == [array.shape[LENGTH]], name)
        check(_is_finite(array), f"{name} is not finite")
    parts = [np.split(arrays[name], seen[:-1], LENGTH) for name in keys_values]
    found = []
    for index, mark in enumerate(header.marks):
        check(mark.messages <= len(messages) and mark.tokens <= len(ids), "a position past the end")
        is_prompt = messages[mark.messages - 1][0] == "user"
        check(mark.unread == is_prompt, "a prompt's last token")
        found.append(
            PrefixState(
                messages[: mark.messages],
                header.text[: mark.characters],
                tuple(ids[: mark.tokens].tolist()),
                mark.unread,
                tuple(arrays[name][index] for name in names),
                keys_values=tuple(tuple(each[: index + 1]) for each in parts),
            )
        )
    return found


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype == np.uint16:  # the bits of bfloat16
        return bool(((array & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(array).all())
