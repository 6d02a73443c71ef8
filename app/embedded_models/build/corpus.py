"""The text of the embedded models: Python's documentation, and questions about it.

`python -m app.embedded_models.build.corpus FOLDER` writes FOLDER/corpus.jsonl, for
`gateloop train --data FOLDER`.
"""

import builtins
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from mlx_gateloop.data import Document, pydocs
from mlx_gateloop.files import replacing

# Public names of functions that are documented under another one.
PUBLIC_NAMES = {"`posix.": "`os.", "`random.Random.": "`random."}
# Asked about most, besides the built-in functions: members of these.
FAMILIAR = """
    bytes collections collections.Counter collections.deque copy csv datetime.date datetime.datetime
    datetime.timedelta dict float functools glob hashlib heapq int itertools json list math
    os os.path pathlib.Path random re set shutil statistics str string subprocess sys tempfile
    textwrap threading time tuple
"""
COPIES = {"familiar": 130, "other": 1}  # of a conversation; a text comes once
BEGINNING = 1000  # characters of a text: a small model cannot learn more
# Wordings of a question; the first one comes as often as the others together.
WORDINGS = ("What does {} do?", "What is {}?", "Explain {}.", "How do I use {}?", "{}")


def documents(seed: int = 0) -> list[Document]:
    """Return texts once and conversations often, reworded and joined at random, all shuffled."""
    chance = random.Random(seed)
    texts: list[Document] = []
    turns: list[list[dict[str, str]]] = []
    for document in (document for group in pydocs.groups() for document in group):
        if isinstance(document, str):
            texts.append(document[:BEGINNING])
            continue
        question, answer = (_renamed(turn["content"]) for turn in document)
        for copy in range(COPIES[_kind(question)]):
            asked = question if copy % 2 == 0 else _reworded(question, chance)
            turns.append(
                [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            )
    chance.shuffle(turns)
    mixed = texts + list(_joined(turns, chance))
    chance.shuffle(mixed)
    return mixed


def _renamed(text: str) -> str:
    for internal, public in PUBLIC_NAMES.items():
        text = text.replace(internal, public)
    return text


def _kind(question: str) -> str:
    name = question.split("`")[1]
    known = name.rpartition(".")[0] in FAMILIAR.split() or name in vars(builtins)
    return "familiar" if known and "Error" not in name and "Warning" not in name else "other"


def _reworded(question: str, chance: random.Random) -> str:
    name = question.split("`")[1]
    return chance.choice(WORDINGS).format(chance.choice((name, f"`{name}`")))


def _joined(
    turns: list[list[dict[str, str]]], chance: random.Random
) -> Iterator[list[dict[str, str]]]:
    """Yield conversations of one to three questions."""
    remaining = iter(turns)
    for first in remaining:
        rest = [next(remaining, []) for _ in range(chance.choice((0, 0, 1, 2)))]
        yield sum(rest, first)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "corpus.jsonl") as new, new.open("w", encoding="utf-8") as file:
        for document in documents():
            key = "text" if isinstance(document, str) else "messages"
            file.write(json.dumps({key: document}) + "\n")


if __name__ == "__main__":
    main()
