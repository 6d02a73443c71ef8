"""Documents, texts or conversations, read from files and folders."""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from mlx_gateloop.errors import InputError, shown

Message: TypeAlias = dict[str, Any]  # "role", "content", and what else a chat template reads


class Conversation(list[Message]):
    """Messages, and the tools that the chat template lists before them."""

    def __init__(self, messages: Iterable[Message], tools: list[Any] | None = None) -> None:
        super().__init__(messages)
        self.tools = tools


Document: TypeAlias = str | list[Message]  # a text, or a conversation

LOG = logging.getLogger(__name__)
SUFFIXES = (".txt", ".md", ".text", ".jsonl")
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
NAMED = "`python-source` or `wikitext-103`"  # corpora, for messages


def path_of(source: str) -> Path:
    """Return a source's path, which is not the empty one: that is the current directory."""
    if not source:
        raise InputError(f"the name of the data is empty; give a path, {NAMED}")
    return Path(source)


def read_documents(source: str) -> list[Document]:
    """Read a text file, a `.jsonl` file, or every such file of a folder and its subfolders."""
    files, others = text_files(path_of(source))
    read = [_read(file) for file in files]
    if not (documents := [document for of_file in read for document in of_file]):
        raise InputError(f"{source}: contains no text; give a file or folder with text")
    turns = (turn for document in documents if not isinstance(document, str) for turn in document)
    if odd := {turn["role"] for turn in turns} - ROLES:
        advice = "answers are those of `assistant`; rename others"
        LOG.warning("%s: unusual roles: %s; %s", source, shown(sorted(odd)), advice)
    left_out = Counter(file.suffix or file.name for file in others)
    left_out += Counter({"empty": read.count([])})
    if left_out:
        named = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
        LOG.warning("%s: left out: %s; files read: %s", source, named, ", ".join(SUFFIXES))
    return documents


def texts(documents: Iterable[Document]) -> Iterator[str]:
    """Yield each document as plain text; a conversation becomes its roles and contents."""
    for document in documents:
        if isinstance(document, str):
            yield document
        else:
            tools = getattr(document, "tools", None)
            listed = json.dumps(tools, ensure_ascii=False) if tools else ""
            yield listed + "".join(f"{turn['role']}\n{content(turn)}\n" for turn in document)


def content(message: Message) -> str:
    """Return the text of a message, and its calls of tools as JSON."""
    calls = message.get("tool_calls")
    return (message["content"] or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def num_bytes(documents: Iterable[Document], answers: bool = False) -> int:
    """The UTF-8 bytes of the documents' `texts`, or of the answers alone, for bits per byte."""
    if not answers:
        return sum(len(text.encode()) for text in texts(documents))
    turns = (turn for document in documents if not isinstance(document, str) for turn in document)
    return sum(len(content(turn).encode()) for turn in turns if turn["role"] == "assistant")


def read_text(path: Path) -> str:
    """Read a file's text unchanged, but without a byte order mark."""
    if path.exists() and not path.is_file():  # a pipe or a device may never end
        raise InputError(f"{path}: not a regular file; give a text file")
    try:
        return path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02X} at offset {error.start}"
        raise InputError(f"{path}: not UTF-8 text ({where}); convert it to UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a readable file") from error


def text_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The file itself, or the text files of a folder sorted by name; and its other files.

    Model directories in it, with such files as a run's log, are neither.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a path, {NAMED}")
    if not path.is_dir():
        return [path], []
    found: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=_refuse):  # follows no links
        folders[:] = [name for name in folders if not name.startswith(".")]
        every = [Path(folder, name) for name in (*folders, *names) if not name.startswith(".")]
        found += [file for file in every if file.is_file() or file.is_symlink()]
    weights = {file.parent for file in found if file.suffix == ".safetensors"}
    models = {
        file.parent
        for file in found
        if file.name in ("config.json", "adapter_config.json")
        and weights & {file.parent, file.parent / "checkpoints"}
    } - {path}
    found = [file for file in found if models.isdisjoint(file.parents)]
    files = [file for file in found if file.is_file() and file.suffix.lower() in SUFFIXES]
    if not files:
        raise InputError(f"{path}: no {', '.join(SUFFIXES)} file in this folder; give another one")
    files.sort(key=lambda file: file.relative_to(path).as_posix())
    return files, [*{*found} - {*files}]


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: {error.strerror}; give a readable folder") from error


def _read(path: Path) -> list[Document]:
    text = read_text(path)
    if path.suffix.lower() in (".json", ".ndjson", ".jsonlines", ".jl"):
        advice = "name it .jsonl if each line is an object, .txt to learn its text as it is"
        raise InputError(f"{path}: JSON; {advice}")
    if path.suffix.lower() != ".jsonl":
        return [text] if text.strip() else []
    lines = enumerate(text.split("\n"), 1)
    documents = [_parse(line, f"{path}:{number}") for number, line in lines if line.strip()]
    return [document for document in documents if any(map(str.strip, texts([document])))]


def _parse(line: str, where: str) -> Document:
    try:
        document = _document(json.loads(line))
        json.dumps([document, getattr(document, "tools", None)], ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    except UnicodeEncodeError:
        raise InputError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff alone)") from None
    except (TypeError, KeyError, ValueError, RecursionError):
        raise InputError(
            f'{where}: expected {{"text": "..."}}, {{"prompt": "...", "completion": "..."}} or'
            ' {"messages": [{"role": "...", "content": "..."}, ...]}; tools are a list of objects'
        ) from None
    return document


def _document(record: object) -> Document:
    if not isinstance(record, dict):
        raise TypeError
    record = {key: value for key, value in record.items() if value is not None}
    if {"prompt", "completion"} <= record.keys():  # in the order in which mlx-lm looks for them
        pair = ("user", record["prompt"]), ("assistant", record["completion"])
        turns = [{"role": role, "content": text} for role, text in pair]
    elif "messages" in record:
        turns = [{"content": None} | turn for turn in record["messages"]]
    else:
        text = record["text"]
        if not isinstance(text, str):
            raise TypeError
        return text
    for turn in turns:
        calls = _objects(turn.get("tool_calls"))
        is_written = isinstance(turn["content"], str) or (calls and turn["content"] is None)
        if not (isinstance(turn["role"], str) and is_written):
            raise TypeError
    if not turns:
        raise TypeError
    return Conversation(turns, _objects(record.get("tools")))


def _objects(value: Any) -> list[Any] | None:
    if not isinstance(value, list | None) or not all(isinstance(x, dict) for x in value or []):
        raise TypeError
    return value
