"""Documents from files, folders and the named corpora, in a training and a validation part."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from mlx_gateloop.errors import InputError

# A text, or a conversation: messages with the keys "role" and "content".
Document: TypeAlias = str | list[dict[str, str]]

SUFFIXES = (".txt", ".md", ".text", ".jsonl")


@dataclass(frozen=True)
class Corpus:
    """Args:
    train: Documents to learn from.
    validation: Documents held out from them.
    test: Documents for the final number; empty unless the corpus brings some.
    """

    train: list[Document]
    validation: list[Document]
    test: list[Document] = field(default_factory=list)


def load_corpus(source: str, validation_fraction: float = 0.1) -> Corpus:
    """Reads a corpus; the same files always give the same documents and the same parts.

    Evenly spaced documents become the validation part; with too few documents for that, the end of
    each. Corpora that bring their own parts keep them.

    Args:
        source: A text file, a `.jsonl` file (a line is {"text": ...} or {"messages": [...]}), a
            folder of such files (`.txt`, `.md`, `.text`, `.jsonl`, subfolders too), a folder with
            WikiText files, or a name: `pydoc` (Python's own documentation, no network needed) or
            `wikitext-103` (from the Hugging Face hub).
        validation_fraction: Of the documents, between 0 and 1.

    Raises:
        InputError: The source is missing, empty, unreadable or malformed.
    """
    from mlx_gateloop.data import pydocs, wikitext

    if not 0 < validation_fraction < 1:
        raise InputError(
            f"validation_fraction: expected between 0 and 1, got {validation_fraction}"
        )
    if source == "pydoc":
        groups = pydocs.groups()
        held_out = _held_out(len(groups), validation_fraction)
        parts: tuple[list[Document], list[Document]] = [], []
        for group, held in zip(groups, held_out, strict=True):
            parts[held].extend(group)
        return Corpus(*parts)
    if source == "wikitext-103":
        return wikitext.load_wikitext(wikitext.download())
    if wikitext.is_wikitext(Path(source)):
        return wikitext.load_wikitext(Path(source))
    return split(_read_all(source), validation_fraction)


def load_documents(source: str) -> list[Document]:
    """Reads the documents of a corpus whole, all parts together; see `load_corpus`."""
    from mlx_gateloop.data import wikitext

    if source in ("pydoc", "wikitext-103") or wikitext.is_wikitext(Path(source)):
        corpus = load_corpus(source)
        return [*corpus.train, *corpus.validation, *corpus.test]
    return _read_all(source)


def _read_all(source: str) -> list[Document]:
    if not source:
        raise InputError("the data has an empty name; give a path, `pydoc` or `wikitext-103`")
    documents = [document for file in _files(Path(source)) for document in _read(file)]
    if not documents:
        raise InputError(f"{source}: it holds no text; give a file or folder with some")
    return documents


def split(documents: list[Document], fraction: float) -> Corpus:
    """Cuts off the validation part; see `load_corpus`."""
    if len(documents) * fraction >= 1 and len(documents) * (1 - fraction) >= 1:
        held_out = _held_out(len(documents), fraction)
        return Corpus(
            [document for document, held in zip(documents, held_out, strict=True) if not held],
            [document for document, held in zip(documents, held_out, strict=True) if held],
        )
    train: list[Document] = []
    validation: list[Document] = []
    for document in documents:
        # A conversation is cut between messages, a text between characters.
        cut = int(len(document) * (1 - fraction))
        train.append(document[:cut])
        validation.append(document[cut:])
    return Corpus([part for part in train if part], [part for part in validation if part])


def _held_out(count: int, fraction: float) -> list[bool]:
    """The i-th is held out where i * fraction passes a whole number: evenly spaced."""
    held_out = [int((i + 1) * fraction) > int(i * fraction) for i in range(count)]
    return held_out if any(held_out) else [*held_out[:-1], True]


def texts(documents: Iterable[Document]) -> Iterator[str]:
    """Each document as plain text, of a conversation the roles and what they say."""
    for document in documents:
        if isinstance(document, str):
            yield document
        else:
            yield "".join(f"{turn['role']}\n{turn['content']}\n" for turn in document)


def num_bytes(documents: Iterable[Document]) -> int:
    """UTF-8 bytes of the documents' `texts`, the measure of bits per byte."""
    return sum(len(text.encode()) for text in texts(documents))


def read_text(path: Path) -> str:
    """A file's text as it is, without a byte order mark.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        where = f"byte 0x{error.object[error.start]:02X} at offset {error.start}"
        raise InputError(f"{path}: not UTF-8 text ({where}); convert it to UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a readable file") from error


def _files(path: Path) -> list[Path]:
    """The file itself, or the text files of a folder in the order of their names."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a path, `pydoc` or `wikitext-103`")
    if not path.is_dir():
        return [path]
    files = [
        file
        for file in path.rglob("*")
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise InputError(f"{path}: no {', '.join(SUFFIXES)} file in this folder; give another one")
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def _read(path: Path) -> list[Document]:
    """The documents of a file that are more than white space."""
    text = read_text(path)
    if path.suffix.lower() != ".jsonl":
        return [text] if text.strip() else []
    lines = enumerate(text.split("\n"), 1)
    documents = [_parse(line, f"{path}:{number}") for number, line in lines if line.strip()]
    return [document for document in documents if any(map(str.strip, texts([document])))]


def _parse(line: str, where: str) -> Document:
    """The document of a line of a `.jsonl` file."""
    try:
        record = json.loads(line)
        line.encode()
        document = _document(record)
        "".join(texts([document])).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    except UnicodeEncodeError:
        raise InputError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff alone)") from None
    except (TypeError, KeyError, ValueError, RecursionError):
        raise InputError(
            f'{where}: expected {{"text": "..."}} or'
            ' {"messages": [{"role": "...", "content": "..."}, ...]}'
        ) from None
    return document


def _document(record: object) -> Document:
    """Checks the form of a decoded line."""
    if not isinstance(record, dict):
        raise TypeError
    if "text" in record:
        text = record["text"]
        if not isinstance(text, str):
            raise TypeError
        return text
    turns = [{key: turn[key] for key in ("role", "content")} for turn in record["messages"]]
    if not turns or not all(isinstance(value, str) for turn in turns for value in turn.values()):
        raise TypeError
    return turns
