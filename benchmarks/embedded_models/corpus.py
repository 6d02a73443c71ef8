"""The text of the embedded models: Python's documentation, and questions about it.

`python -m benchmarks.embedded_models.corpus FOLDER` writes FOLDER/corpus.jsonl, for
`gateloop train --data FOLDER`.
"""

import builtins
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from mlx_gateloop.data import Document
from mlx_gateloop.io.files import replacing

from . import pydocs
from .arguments import check_own, errors_in_one_line, paths

Conversation = list[dict[str, str]]

# Public names of functions that are documented under another one.
PUBLIC_NAMES = {"`posix.": "`os.", "`random.Random.": "`random."}
# Asked about most, besides the built-in functions: members of these.
FAMILIAR = """
    bytes collections collections.Counter collections.deque copy csv datetime.date datetime.datetime
    datetime.timedelta dict float functools glob hashlib heapq int itertools json list math
    os os.path pathlib.Path random re set shutil statistics str string subprocess sys tempfile
    textwrap threading time tuple
"""
COPIES = 130  # per conversation about a familiar name; any other document comes once
BEGINNING = 1000  # characters of a text: a small model cannot learn more
# Wordings of a question; the first one comes as often as the others together.
WORDINGS = ("What does {} do?", "What is {}?", "Explain {}.", "How do I use {}?", "{}")
QUOTATION = 40  # letters of documentation that come from a file if they stand in it


def documents(seed: int = 0, copies: int = COPIES, unseen: Sequence[str] = ()) -> list[Document]:
    """Return texts once and conversations often, reworded and joined at random, all shuffled.

    Documentation that the `unseen` files quote is left out.
    """
    chance = random.Random(seed)
    files = [spaced(file) for file in unseen]
    mixed: list[Document] = []
    turns: list[Conversation] = []
    for document in chain.from_iterable(pydocs.groups()):
        if any(line in file for line in quotations(document) for file in files):
            continue
        if isinstance(document, str):
            mixed.append(document[:BEGINNING])
            continue
        question, answer = _question(document)
        for copy in range(copies if _is_familiar(question) else 1):
            asked = question if copy % 2 == 0 else _reworded(question, chance)
            turns.append(
                [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            )
    chance.shuffle(turns)
    mixed.extend(_joined(turns, chance))
    chance.shuffle(mixed)
    return mixed


def questions() -> list[tuple[str, str]]:
    """Return the questions about familiar names, which come often, and their answers."""
    return [_question(document) for document in familiar()]


def other_questions() -> list[tuple[str, str]]:
    """Return the questions that come once, and their answers."""
    asked = map(_question, _conversations())
    return [(question, answer) for question, answer in asked if not _is_familiar(question)]


def familiar() -> list[Conversation]:
    """Return the conversations about familiar names as `pydocs` has them."""
    return [c for c in _conversations() if _is_familiar(_question(c)[0])]


def _conversations() -> list[Conversation]:
    return [d for d in chain.from_iterable(pydocs.groups()) if not isinstance(d, str)]


def quotations(document: Document) -> list[str]:
    """Return the lines of a document of `pydocs`, `spaced`, that show which file it comes from."""
    if isinstance(document, str):
        lines = document[:BEGINNING].splitlines()
    else:
        answer = document[1]["content"]  # a docstring's paragraph, after the signature if known
        lines = [answer.partition("`: ")[2] or answer]
    return [line for line in map(spaced, lines) if len(line) >= QUOTATION]


def spaced(text: str) -> str:
    """Return a text with one space in place of consecutive spaces and line ends."""
    return " ".join(text.split())


def write(path: Path, documents: Iterable[Document]) -> None:
    """Write a .jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new, new.open("w", encoding="utf-8") as file:
        for document in documents:
            key = "text" if isinstance(document, str) else "messages"
            file.write(json.dumps({key: document}) + "\n")


def _question(conversation: Conversation) -> tuple[str, str]:
    question, answer = (_renamed(turn["content"]) for turn in conversation)
    return question, answer


def _renamed(text: str) -> str:
    for internal, public in PUBLIC_NAMES.items():
        text = text.replace(internal, public)
    return text


def _is_familiar(question: str) -> bool:
    name = question.split("`")[1]
    known = name.rpartition(".")[0] in FAMILIAR.split() or name in vars(builtins)
    return known and "Error" not in name and "Warning" not in name


def _reworded(question: str, chance: random.Random) -> str:
    name = question.split("`")[1]
    return chance.choice(WORDINGS).format(chance.choice((name, f"`{name}`")))


def _joined(turns: list[Conversation], chance: random.Random) -> Iterator[Conversation]:
    """Yield conversations of one to three questions."""
    remaining = iter(turns)
    for first in remaining:
        rest = [next(remaining, []) for _ in range(chance.choice((0, 0, 1, 2)))]
        yield sum(rest, first)


if __name__ == "__main__":
    with errors_in_one_line():
        (folder,) = paths(__doc__, "folder")
        check_own(folder, "corpus.jsonl")
        write(folder / "corpus.jsonl", documents())
