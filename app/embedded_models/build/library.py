"""The text of a model that writes code and answers: Python's library and its documentation.

`python -m app.embedded_models.build.library FOLDER` writes FOLDER/corpus.jsonl, for
`gateloop train --data FOLDER`. The files of `held_out` and their documentation are not in it.
"""

import random
import sys
from pathlib import Path

from mlx_gateloop.data import Document, load_corpus, load_documents, texts

from .corpus import documents as documentation
from .corpus import familiar, quotes, spaced, write

COPIES = 26  # of a conversation about a familiar name: as the text is read several times


def documents(seed: int = 0) -> list[Document]:
    """Return the library's files, the documentation's texts and conversations, all shuffled."""
    unseen = held_out()
    files = [file for file in load_documents("python-source") if file not in unseen]
    mixed = [*files, *documentation(seed, COPIES, unseen)]
    random.Random(seed).shuffle(mixed)
    return mixed


def held_out() -> list[str]:
    """Return the files that no embedded model has read.

    They are the test part of `python-source`, except files whose documentation is familiar.
    """
    conversations = familiar()
    files = list(texts(load_corpus("python-source").test))
    return [file for file in files if not any(quotes(c, spaced(file)) for c in conversations)]


if __name__ == "__main__":
    write(Path(sys.argv[1]), documents())
