"""Corpora in a training and a validation part: files, folders, and the ones with a name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_gateloop.data import python_source, wikitext
from mlx_gateloop.data.documents import Conversation, Document, path_of, read_documents, texts
from mlx_gateloop.errors import InputError

PARTS = ("train", "valid", "test")  # files in a folder, as `mlx_lm.lora` names them
FORMATS = (".jsonl", ".txt")  # of such files
TEST_FRACTION = 0.05  # share of the files of `python-source`
SKEW = 3  # a validation part of so many times its share is too large, one of a third too small


@dataclass(frozen=True)
class Corpus:
    """Documents of a corpus in three parts; `test` is empty unless the corpus has such a part."""

    train: list[Document]
    validation: list[Document]
    test: list[Document] = field(default_factory=list)


def load_corpus(source: str, validation_fraction: float = 0.1) -> Corpus:
    """Read a corpus; the same files always give the same documents and the same parts.

    Evenly spaced documents become the validation part; if there are too few documents, the end of
    each does. If their share of the text is far from the fraction, documents are chosen by size,
    and the end of each one longer than the part. Corpora with parts of their own keep them.

    Args:
        source: A text file, a `.jsonl` file (a line is {"text": ...}, {"prompt": ...,
            "completion": ...} or {"messages": [...]}, the last two perhaps with "tools"), a folder
            of them, of parts (`train.jsonl`, `valid.jsonl`, perhaps `test.jsonl`, or as `.txt`) or
            of WikiText's files, or a name: `python-source` (of this Python) or `wikitext-103` (from
            the Hugging Face hub).
        validation_fraction: Share of the documents or of the text, between 0 and 1.
    """
    if not 0 < validation_fraction < 1:
        raise InputError(f"validation_fraction: expected from 0 to 1, got {validation_fraction}")
    if source == "python-source":
        kept = split(list(python_source.documents()), TEST_FRACTION)
        corpus = split(kept.train, validation_fraction)
        return Corpus(corpus.train, corpus.validation, kept.validation)
    if source == "wikitext-103":
        return Corpus(*wikitext.read_parts(wikitext.download()))
    if wikitext.is_wikitext(path := path_of(source)):
        return Corpus(*wikitext.read_parts(path))
    if parts := _parts(path):
        return Corpus(*map(read_documents, parts))
    found = [file for file in (path.iterdir() if path.is_dir() else ()) if file.is_file()]
    files = {f for f in found if f.suffix.lower() in FORMATS and not f.name.startswith(".")}
    for suffix in FORMATS:
        first = path / f"train{suffix}"
        if first.is_file() and (others := files - {first}):
            advice = f"add valid{suffix}, or move the second, or rename the first to learn both"
            raise InputError(f"{source}: has {first.name} and {min(others).name}; {advice}")
    documents = read_documents(source)
    corpus = split(documents, validation_fraction)
    share = _size(corpus.validation) / _size(documents) / validation_fraction
    if 1 / SKEW <= share <= SKEW or not any(isinstance(d, str) for d in documents):
        return corpus
    by_size = _split_by_size(documents, validation_fraction)
    return by_size if by_size.train and by_size.validation else corpus


def load_documents(source: str) -> list[Document]:
    """Read all documents of a corpus, whichever part they belong to; see `load_corpus`."""
    path = path_of(source)
    if source in ("python-source", "wikitext-103") or wikitext.is_wikitext(path) or _parts(path):
        corpus = load_corpus(source)
        return [*corpus.train, *corpus.validation, *corpus.test]
    return read_documents(source)


def _parts(folder: Path) -> list[str]:
    """List the files of a folder's own parts; without two of them it has none."""
    for suffix in FORMATS:
        files = [folder / f"{part}{suffix}" for part in PARTS]
        if all(file.is_file() for file in files[:2]):
            return [str(file) for file in files if file.exists()]
    return []


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
    return _cut(documents, fraction)


def _split_by_size(documents: list[Document], fraction: float) -> Corpus:
    """Hold out the end of each text larger than the part, and other documents by their size."""
    corpus, most, read, held = Corpus([], []), fraction * _size(documents), 0.0, 0.0
    for document in documents:
        size = _size([document])
        read += size
        if size > most and isinstance(document, str):
            cut, held = _cut([document], fraction), held + fraction * size
            corpus.train.extend(cut.train)
            corpus.validation.extend(cut.validation)
        elif held + size / 2 <= fraction * read:
            held += size
            corpus.validation.append(document)
        else:
            corpus.train.append(document)
    return corpus


def _size(documents: list[Document]) -> int:
    return sum(map(len, texts(documents)))


def _cut(documents: list[Document], fraction: float) -> Corpus:
    """Hold out the end of each document."""
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
