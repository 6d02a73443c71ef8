"""A conversation in one safetensors file: its messages and its last cached state."""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as encode

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import checksum, replacing

from ..generation.caches import LENGTH
from ..generation.models import Models
from ..generation.prefix_cache import ROLES, START, PrefixCache, PrefixState, as_messages
from ..generation.run import Limits

MAX_BYTES = 256 * 2**20  # file size
MAX_MESSAGES = Limits().messages + 2  # a system prompt and the last answer
MAX_BRANCHES = 20
MAX_CHARACTERS = 4 * (MAX_BRANCHES + 1) * Limits().conversation_characters  # of a header

Messages = list[dict[str, str]]
_Role = Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
_Pairs = Annotated[list[tuple[_Role, str]], Field(max_length=MAX_MESSAGES)]


class Header(BaseModel):
    """Metadata of a conversation file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: str = Field(default="gateloop-conversation-2", pattern="^gateloop-conversation-2$")
    model: str
    fingerprint: str  # of the model that made the state
    messages: _Pairs = Field(min_length=1)
    # the messages as they were before a retry, an edit or an undo
    branches: list[_Pairs] = Field([], max_length=MAX_BRANCHES)
    read: int = Field(default=0, ge=0)  # first messages, which the state covers
    text: str = ""  # these messages, rendered by the chat template


def save(
    path: Path,
    conversation: str,
    model: str,
    messages: Messages,
    models: Models,
    prefix_cache: PrefixCache,
    max_bytes: int = MAX_BYTES,
    branches: Sequence[Messages] = (),
) -> None:
    """Write a conversation with its last cached state, or without it if it is too large.

    Without it, the model must read the messages again.

    Raises:
        InputError: The file would exceed `max_bytes`, or cannot be written.
    """
    fingerprint = models.fingerprint(model)
    pairs, *others = (
        list(as_messages(each, complete=False)) for each in (messages, *branches[-MAX_BRANCHES:])
    )
    header = Header(model=model, fingerprint=fingerprint, messages=pairs, branches=others)
    last = [START, *prefix_cache.prefixes(conversation, fingerprint, tuple(pairs))][-1]
    content = _encode(header, last)
    if len(content) > max_bytes:
        content = _encode(header, START)
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
) -> tuple[str, str, Messages, list[Messages]]:
    """Read a conversation and cache its state under a new id, for the model that made it.

    Returns the id, the model's name, the messages and the branches.

    Raises:
        InputError: The file is not a conversation, or its model is missing.
    """
    header, prefix = read(path)
    models.check(header.model)
    conversation = secrets.token_urlsafe(16)
    if prefix.messages:
        prefix_cache.put(conversation, header.fingerprint, prefix)
    messages, *branches = (
        [{"role": role, "content": text} for role, text in pairs]
        for pairs in (header.messages, *header.branches)
    )
    return conversation, header.model, messages, branches


def text(path: Path) -> str:
    """Read the texts of a file's messages; empty if it is no conversation."""
    try:
        with safe_open(path, framework="numpy") as opened:
            header = json.loads((opened.metadata() or {})["conversation"])
        parts = header["messages"], *header["branches"]
        return "\n".join(text for part in parts for _, text in part)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        return ""


def read(path: Path) -> tuple[Header, PrefixState]:
    """Read and validate a file that `save` wrote; `LoadedModel.fits` checks the state later."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.stem}: larger than {MAX_BYTES >> 20} MB, not a conversation")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["conversation"]
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"{path.stem}: more than {MAX_CHARACTERS:,} characters")
        header = Header.model_validate_json(text)
        if metadata.get("sha256") != checksum(sorted(arrays.items()), text):
            raise InputError(f"{path.stem}: damaged: wrong checksum")
        return header, _prefix(header, arrays)
    except (OSError, SafetensorError, TypeError, KeyError, IndexError) as error:
        raise InputError(f"{path.stem}: not a readable conversation file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "header"
        raise InputError(f"{path.stem}: not a conversation: {where}: {first['msg']}") from error


def _encode(header: Header, prefix: PrefixState) -> bytes:
    arrays = {"ids": np.array(prefix.ids, np.uint32)}
    arrays |= {f"states.{n}": state for n, state in enumerate(prefix.states)}
    for n, parts in enumerate(prefix.keys_values):
        arrays[f"keys_values.{n}"] = np.concatenate(parts, LENGTH)
    written = header.model_copy(update={"read": len(prefix.messages), "text": prefix.text})
    try:
        text = written.model_dump_json()
        digest = checksum(sorted(arrays.items()), text)
        return encode(arrays, {"conversation": text, "sha256": digest})
    except ValueError:  # not valid in UTF-8
        raise InputError("messages: one contains a lone surrogate; type it again") from None


def _prefix(header: Header, arrays: dict[str, np.ndarray]) -> PrefixState:
    if not header.read:
        return START
    ids = arrays["ids"].astype(np.uint32, casting="no").tolist()
    states, keys_values = (
        [arrays[f"{kind}.{n}"] for n in range(sum(kind in name for name in arrays))]
        for kind in ("states", "keys_values")
    )
    if any(array.ndim != 4 for array in keys_values):
        raise IndexError("keys and values")
    return PrefixState(
        tuple(header.messages[: header.read]),
        header.text,
        tuple(ids),
        int(header.messages[header.read - 1][0] == "user"),
        tuple(states),
        keys_values=tuple((array,) for array in keys_values),
    )
