"""The text of a model that writes code and answers: Python's library and its documentation.

`python -m app.embedded_models.build.library FOLDER` writes FOLDER/train.jsonl and valid.jsonl, for
`gateloop train --data FOLDER`. The files of `held_out` and their documentation are in neither. The
validation part is files alone: of the conversations every one is read many times.
"""

import random
import sys
from pathlib import Path

from mlx_gateloop.data import Corpus, load_corpus, load_documents, texts
from mlx_gateloop.data.corpus import split

from .corpus import documents as documentation
from .corpus import familiar, quotes, spaced, write

VALIDATION = 0.03  # of the files
COPIES = 26  # of a conversation about a familiar name: as the text is read several times


def parts(seed: int = 0) -> Corpus:
    """Return the text to learn from, shuffled, and files for validation.

    The text is the library's other files, and the documentation's texts and conversations.
    """
    unseen = held_out()
    files = split([f for f in load_documents("python-source") if f not in unseen], VALIDATION)
    mixed = [*files.train, *documentation(seed, COPIES, unseen)]
    random.Random(seed).shuffle(mixed)
    return Corpus(mixed, files.validation)


def held_out() -> list[str]:
    """Return the files that no embedded model has read.

    They are the test part of `python-source`, except files whose documentation is familiar.
    """
    conversations = familiar()
    files = list(texts(load_corpus("python-source").test))
    return [file for file in files if not any(quotes(c, spaced(file)) for c in conversations)]


if __name__ == "__main__":
    corpus = parts()
    write(Path(sys.argv[1]) / "train.jsonl", corpus.train)
    write(Path(sys.argv[1]) / "valid.jsonl", corpus.validation)
