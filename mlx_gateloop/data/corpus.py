"""Corpora in a training and a validation part: files, folders, and the ones with a name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_gateloop.data import python_source, wikitext
from mlx_gateloop.data.documents import Conversation, Document, read_documents
from mlx_gateloop.errors import InputError

PARTS = ("train.jsonl", "valid.jsonl", "test.jsonl")  # in a folder, as `mlx_lm.lora` names them
TEST_FRACTION = 0.05  # share of the files of `python-source`


@dataclass(frozen=True)
class Corpus:
    """Documents of a corpus in three parts; `test` is empty unless the corpus has such a part."""

    train: list[Document]
    validation: list[Document]
    test: list[Document] = field(default_factory=list)


def load_corpus(source: str, validation_fraction: float = 0.1) -> Corpus:
    """Read a corpus; the same files always give the same documents and the same parts.

    Evenly spaced documents become the validation part; if there are too few documents, the end of
    each does. Corpora with parts of their own keep them.

    Args:
        source: A text file, a `.jsonl` file (a line is {"text": ...}, {"prompt": ...,
            "completion": ...} or {"messages": [...]}, the last two perhaps with "tools"), a folder
            of them, of parts (`train.jsonl`, `valid.jsonl`, perhaps `test.jsonl`) or of WikiText's
            files, or a name: `python-source` (of this Python) or `wikitext-103` (from the Hugging
            Face hub).
        validation_fraction: Share of the documents, between 0 and 1.
    """
    if not 0 < validation_fraction < 1:
        raise InputError(f"validation_fraction: expected from 0 to 1, got {validation_fraction}")
    if source == "python-source":
        kept = split(list(python_source.documents()), TEST_FRACTION)
        corpus = split(kept.train, validation_fraction)
        return Corpus(corpus.train, corpus.validation, kept.validation)
    if source == "wikitext-103":
        return Corpus(*wikitext.read_parts(wikitext.download()))
    if wikitext.is_wikitext(Path(source)):
        return Corpus(*wikitext.read_parts(Path(source)))
    files = [Path(source) / name for name in PARTS]
    if all(file.is_file() for file in files[:2]):
        return Corpus(*(read_documents(str(file)) for file in files if file.exists()))
    if files[0].is_file() and (others := {*Path(source).glob("[!.]*.jsonl")} - {files[0]}):
        advice = f"add {PARTS[1]}, or give {PARTS[0]} another name"
        raise InputError(f"{source}: has {PARTS[0]} and {min(others).name}; {advice}")
    return split(read_documents(source), validation_fraction)


def load_documents(source: str) -> list[Document]:
    """Read all documents of a corpus, whichever part they belong to; see `load_corpus`."""
    path = Path(source)
    has_parts = wikitext.is_wikitext(path) or all((path / name).is_file() for name in PARTS[:2])
    if source in ("python-source", "wikitext-103") or has_parts:
        corpus = load_corpus(source)
        return [*corpus.train, *corpus.validation, *corpus.test]
    return read_documents(source)


def split(documents: list[Document], fraction: float) -> Corpus:
    """Split documents into a training and a validation part; see `load_corpus`."""
    are_chats = len(documents) > 1 and not any(isinstance(d, str) for d in documents)
    if are_chats or (len(documents) * fraction >= 1 and len(documents) * (1 - fraction) >= 1):
        # The i-th document is held out where i * fraction passes a whole number.
        held_out = [int((i + 1) * fraction) > int(i * fraction) for i in range(len(documents))]
        if not any(held_out):
            held_out[-1] = True
        pairs = [*zip(documents, held_out, strict=True)]
        return Corpus([d for d, held in pairs if not held], [d for d, held in pairs if held])
    train: list[Document] = []
    validation: list[Document] = []
    for document in documents:
        # A conversation is cut before a question, a text between characters.
        cut = int(len(document) * (1 - fraction))
        while 1 < cut < len(document) and _is_answer(document[cut]):
            cut -= 1
        if not isinstance(document, str) and not any(map(_is_answer, document[1:cut])):
            cut = len(document)  # one question and its answer stay together
        for part, piece in ((train, slice(cut)), (validation, slice(cut, None))):
            kept: Document = document[piece]
            if isinstance(document, Conversation) and not isinstance(kept, str):
                kept = Conversation(kept, document.tools)
            part.append(kept)
    if not any(validation):
        raise InputError("the text has no part for validation; give more texts or conversations")
    return Corpus([part for part in train if part], [part for part in validation if part])


def _is_answer(turn: Any) -> bool:
    return not isinstance(turn, str) and turn["role"] != "user"
