"""The next byte of a text as a task: natural data beside the synthetic tasks."""

from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from mlx_gateloop.data.corpus import load_corpus
from mlx_gateloop.data.documents import texts
from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError

BYTES = 256
SPLITS = 10  # that seeds choose from


def next_byte(file: str = "", length: int = 256, seed: int = 0) -> Task:
    """Cut the bytes of a text to consecutive sequences of `length`; each byte is predicted.

    90% are for training, then come 5% for validation and 5% for the test; `python-source` has its
    own parts. Seeds 1 to 9 move the parts on by as many tenths of the text. The span is the number
    of bytes before the answer.
    """
    if file == "python-source":
        corpus = load_corpus(file, validation_fraction=0.05)
        documents = [*corpus.train, *corpus.validation, *corpus.test]
        start = seed % SPLITS * len(documents) // SPLITS
        documents = documents[start:] + documents[:start]
        sizes = [len(part) for part in (corpus.train, corpus.validation, corpus.test)]
        spans = pairwise([0, *accumulate(sizes)])
        parts = ("".join(texts(documents[a:b])).encode() for a, b in spans)
        training, validation, test = (_samples(np.frombuffer(p, np.uint8), length) for p in parts)
    else:
        text = _read(file, 20 * length + 1, length)
        samples = _samples(np.roll(text, -(seed % SPLITS * len(text) // SPLITS)), length)
        cuts = pairwise([0, *(len(samples) * share // 100 for share in (90, 95, 100))])
        training, validation, test = (samples[a:b] for a, b in cuts)
    return Task(BYTES, BYTES, training, validation, test, is_exact=False)


def _read(file: str, least: int, length: int) -> np.ndarray:
    if Path(file).exists() and not Path(file).is_file():
        raise InputError(f"{file}: not a file; give a text")
    try:
        text = np.frombuffer(Path(file).read_bytes(), np.uint8)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; give an existing file") from None
    if len(text) < least:
        raise InputError(f"{file}: {len(text)} bytes; at least {least} for a length of {length}")
    return text


def _samples(text: np.ndarray, length: int) -> Samples:
    count = (len(text) - 1) // length
    inputs, targets = (
        text[start : start + count * length].reshape(count, length).astype(np.int32)
        for start in (0, 1)
    )
    span = np.broadcast_to(np.arange(1, length + 1, dtype=np.int32), inputs.shape)
    return Samples(inputs, targets, span)
