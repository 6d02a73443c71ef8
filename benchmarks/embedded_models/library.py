"""The text of a model that writes code and answers: Python's library and its documentation.

`python -m benchmarks.embedded_models.library FOLDER ANSWERS` writes train.jsonl and valid.jsonl to
both, for `gateloop train --data`: the text, and that of the last steps, which repeats the answers.
The files of `held_out` are in none, nor is their documentation, except texts of less than
`QUOTATION` letters. The validation part is files alone: of the conversations every one is read
many times.
"""

import hashlib
import json
import platform
import random
import sysconfig
import tokenize
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from mlx_gateloop.data import Corpus, Document, load_corpus, load_documents, texts
from mlx_gateloop.data.corpus import split
from mlx_gateloop.errors import InputError

from .arguments import check_own, errors_in_one_line, paths
from .corpus import documents as documentation
from .corpus import familiar, questions, quotations, spaced, write

VALIDATION = 0.03  # share of the files
COPIES = 26  # per conversation about a familiar name; the text is read several times
REPEATED = 12  # copies of one in the text of the last steps
INSTALLED = {"site-packages", "dist-packages"}
MODELS = Path(__file__).parents[2] / "app" / "embedded_models"
# SHA-256 of the held-out files of Python 3.11.7, whose other files `code` has read.
UNREAD = "db52742bcf272fcbc2a824d0a44e1d0694455b96326eddd702d47e3be851c6db"


def parts(seed: int = 0) -> Corpus:
    """Return the text to learn from, shuffled, and files for validation.

    The text is the other files and tests of the library, and texts and conversations of its
    documentation.
    """
    unseen = held_out()
    files = split([f for f in load_documents("python-source") if f not in unseen], VALIDATION)
    mixed = [*files.train, *documentation(seed, COPIES, unseen)]
    mixed += tests({*unseen, *texts(files.validation)})
    random.Random(seed).shuffle(mixed)
    return Corpus(mixed, files.validation)


def answers(text: list[Document], seed: int = 1) -> list[Document]:
    """Return the questions about familiar names `REPEATED` times, and as much of the whole text."""
    chance = random.Random(seed)
    asked: list[Document] = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in questions()
    ]
    mixed = asked * REPEATED
    remaining = sum(len(json.dumps(document)) for document in mixed)
    for document in chance.sample(text, len(text)):
        if remaining < 0:
            break
        remaining -= len(json.dumps(document))
        mixed.append(document)
    chance.shuffle(mixed)
    return mixed


def held_out() -> list[str]:
    """Return the files of the running Python that a model of `parts` does not read.

    They are the test part of `python-source`, except files with familiar documentation.
    """
    lines = [line for conversation in familiar() for line in quotations(conversation)]
    files = ((file, spaced(file)) for file in texts(load_corpus("python-source").test))
    return [file for file, words in files if not any(line in words for line in lines)]


def tests(withheld: Container[str]) -> list[str]:
    """Return the library's tests, except those named exactly as a file with a text in `withheld`.

    Other tests may use such a file: those of `cProfile` are named `test_cprofile`.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for file in sorted(root.rglob("*.py")):
        if INSTALLED.isdisjoint(file.parts):
            with suppress(SyntaxError, UnicodeDecodeError), tokenize.open(file) as opened:
                files[file.relative_to(root).with_suffix("")] = opened.read()
    tested = {
        (file.parent if file.name == "__init__" else file).name
        for file, text in files.items()
        if text in withheld
    }
    return [
        text
        for file, text in files.items()
        if file.name.startswith("test_")
        and tested.isdisjoint(part.removeprefix("test_") for part in file.parts)
    ]


def unread(*directories: str | Path) -> list[str]:
    """Return the held-out files, which must be those that embedded models have not read."""
    files = held_out()
    embedded = [folder for folder in directories if Path(folder).resolve().parent == MODELS]
    if embedded and hashlib.sha256("\0".join(files).encode()).hexdigest() != UNREAD:
        version = platform.python_version()
        raise InputError(
            f"{embedded[0]}: it may have read files that are held out from Python "
            f"{version}'s library; run this with Python 3.11.7"
        )
    return files


if __name__ == "__main__":
    with errors_in_one_line():
        folder, last = paths(__doc__, "folder", "answers")
        corpus = parts()
        for path, text in (folder, corpus.train), (last, answers(corpus.train)):
            check_own(path, "train.jsonl", "valid.jsonl")
            write(path / "train.jsonl", text)
            write(path / "valid.jsonl", corpus.validation)
