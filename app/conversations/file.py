"""A conversation as one safetensors file: its messages, and the states to go on from."""

import secrets
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import checksum, replacing

from ..generation.caches import LENGTH
from ..generation.models import Models
from ..generation.run import Limits
from ..generation.states import ROLES, START, Boundary, Message, StateCache, as_messages

DTYPES = (np.float32, np.float16, np.uint16)
MOST_BYTES = 256 * 2**20  # of a file
MOST_MESSAGES = Limits().messages + 1  # the last one is an answer
MOST_CHARACTERS = 4 * Limits().conversation_characters  # with what templates add

_Role = Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]


class _Mark(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    messages: int = Field(ge=1)
    characters: int = Field(ge=0)
    tokens: int = Field(ge=1)
    unread: int = Field(ge=0, le=1)


class Header(BaseModel):
    """Metadata of a conversation's file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(pattern="^gateloop-conversation-1$")
    model: str
    fingerprint: str  # the model's
    # role and text, of the whole chat
    messages: list[tuple[_Role, str]] = Field(min_length=1, max_length=MOST_MESSAGES)
    text: str  # what the chat template makes of them, up to the last state
    # positions of the states; later messages are read again
    marks: list[_Mark] = Field(max_length=MOST_MESSAGES)


def save(
    path: Path,
    conversation: str,
    model: str,
    messages: list[dict[str, str]],
    models: Models,
    states: StateCache,
    most_bytes: int = MOST_BYTES,
) -> bool:
    """Write a conversation with its cached states; attention's are left out if too large.

    Returns False if the states were left out: the messages must be read again.

    Raises:
        InputError: The file would be larger than `most_bytes`, or cannot be written.
    """
    fingerprint = models.fingerprint(model)
    pairs = as_messages(messages, complete=False)
    boundaries = states.prefixes(conversation, fingerprint, pairs)
    content = _encode(model, fingerprint, pairs, boundaries)
    has_states = len(content) <= most_bytes or not any(b.attended for b in boundaries)
    if not has_states:
        content = _encode(model, fingerprint, pairs, [])
    if len(content) > most_bytes:
        need = f"{len(content) / 2**20:.1f} MB, {most_bytes / 2**20:.1f} MB are left"
        raise InputError(f"{path.stem}: not saved: needs {need}; delete saved conversations")
    try:
        with replacing(path) as new:
            new.touch(0o600)  # other users of this machine cannot read it
            new.write_bytes(content)
    except OSError as error:
        raise InputError(f"{path.stem}: cannot be written: {error.strerror or error}") from error
    return has_states


def load(path: Path, models: Models, states: StateCache) -> tuple[str, str, list[dict[str, str]]]:
    """Read a conversation and put its states into the cache, under a new id.

    Returns its id, the model's name and the messages. `InputError` says that the file is not a
    conversation, or that its model is missing or has changed.
    """
    header, boundaries = read(path)
    info = models.info(header.model)
    if models.fingerprint(header.model) != header.fingerprint:
        raise InputError(
            f"{path.stem}: the model {header.model!r} has changed since; the states do not fit it"
        )
    # of other models only the loaded one knows if they fit
    for boundary in boundaries if info.state_shape is not None else ():
        shapes = {state.shape for state in boundary.states}
        if len(boundary.states) != info.layers or shapes != {info.state_shape}:
            raise InputError(f"{path.stem}: damaged: its states are not of {header.model!r}")
        if max(boundary.ids) >= info.vocab_size:
            raise InputError(f"{path.stem}: damaged: token ids")
    conversation = secrets.token_urlsafe(16)
    for boundary in boundaries:
        states.put(conversation, header.fingerprint, boundary)
    messages = [{"role": role, "content": text} for role, text in header.messages]
    return conversation, header.model, messages


def read(path: Path) -> tuple[Header, list[Boundary]]:
    """Read a file that `save` wrote, and check everything in it."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path.stem}: larger than {MOST_BYTES >> 20} MB, not a conversation")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            text = metadata.get("conversation", "")
            header = Header.model_validate_json(text)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("sha256") != checksum(sorted(arrays.items()), text):
            raise InputError(f"{path.stem}: damaged: its checksum is another")
        return header, _boundaries(path.stem, header, arrays)
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise InputError(f"{path.stem}: not a readable conversation file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise InputError(f"{path.stem}: not a conversation: {where}: {first['msg']}") from error


def _encode(
    model: str, fingerprint: str, messages: tuple[Message, ...], boundaries: list[Boundary]
) -> bytes:
    from safetensors.numpy import save as encode

    last = boundaries[-1] if boundaries else START
    prefixes = [
        b for b in boundaries if last.text.startswith(b.text) and last.ids[: len(b.ids)] == b.ids
    ]
    header = Header(
        format="gateloop-conversation-1",
        model=model,
        fingerprint=fingerprint,
        messages=list(messages),
        text=last.text,
        marks=[
            _Mark(
                messages=len(b.messages),
                characters=len(b.text),
                tokens=len(b.ids),
                unread=b.unread,
            )
            for b in prefixes
        ],
    )
    arrays = {"ids": np.array(last.ids, np.int64)}
    for layer in range(len(last.states)):
        arrays[f"states.{layer}"] = np.stack([b.states[layer] for b in prefixes])
    for index, parts in enumerate(last.attended):
        arrays[f"attended.{index}"] = np.concatenate(parts, LENGTH)
    try:
        text = header.model_dump_json()
        sha256 = checksum(sorted(arrays.items()), text)
        return encode(arrays, {"conversation": text, "sha256": sha256})
    except ValueError:  # UTF-8 can't hold it
        raise InputError("messages: one holds half of a character; type it again") from None


def _boundaries(stem: str, header: Header, arrays: dict[str, np.ndarray]) -> list[Boundary]:
    def check(good: bool, problem: str) -> None:
        if not good:
            raise InputError(f"{stem}: damaged: {problem}")

    characters = len(header.text) + sum(len(text) for _, text in header.messages)
    check(characters <= MOST_CHARACTERS, f"more than {MOST_CHARACTERS} characters")
    messages = tuple(header.messages)
    ids = arrays.pop("ids", np.zeros(0))
    check(ids.dtype == np.int64 and ids.ndim == 1 and bool((ids >= 0).all()), "token ids")
    names = [f"states.{i}" for i in range(sum(name.startswith("states.") for name in arrays))]
    attended = [f"attended.{i}" for i in range(len(arrays) - len(names))]
    check({*names, *attended} == arrays.keys(), "unknown arrays")
    for name in names:
        states = arrays[name]
        check(states.dtype in DTYPES and len(states) == len(header.marks), name)
        check(_is_finite(states), f"{name} is not finite")
    seen = [mark.tokens - mark.unread for mark in header.marks]
    for name in attended:
        array = arrays[name]
        check(array.dtype in DTYPES and array.ndim == 4, name)
        check(seen == sorted(seen) and seen[-1:] == [array.shape[LENGTH]], name)
        check(_is_finite(array), f"{name} is not finite")
    parts = [np.split(arrays[name], seen[:-1], LENGTH) for name in attended]
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
                attended=tuple(tuple(each[: index + 1]) for each in parts),
            )
        )
    return found


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype == np.uint16:  # the bits of bfloat16
        return bool(((array & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(array).all())
