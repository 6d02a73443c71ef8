"""The next byte of a text as a task: natural data beside the synthetic tasks."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from mlx_gateloop.data.corpus import load_corpus
from mlx_gateloop.data.documents import Document, texts
from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError

BYTES = 256


def next_byte(file: str = "", length: int = 256) -> Task:
    """Cut the bytes of a text to consecutive sequences of `length`; each byte is asked for.

    The first 90% are training samples, then come 5% for validation and 5% for the test; the `file`
    `python-source` has its own parts. The span is the number of bytes before the answer. An
    incomplete last sequence of a part is dropped.

    Raises:
        InputError: The file cannot be read, or has fewer than 20 sequences.
    """
    if file == "python-source":
        corpus = load_corpus(file, validation_fraction=0.05)
        parts = [_bytes(documents) for documents in (corpus.train, corpus.validation, corpus.test)]
        training, validation, test = (_samples(part, length) for part in parts)
    else:
        samples = _samples(_read(file, 20 * length + 1, length), length)
        cuts = [len(samples) * 90 // 100, len(samples) * 95 // 100, len(samples)]
        training, validation, test = (samples[a:b] for a, b in pairwise([0, *cuts]))
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


def _bytes(documents: list[Document]) -> np.ndarray:
    return np.frombuffer("".join(texts(documents)).encode(), np.uint8)


def _samples(text: np.ndarray, length: int) -> Samples:
    count = (len(text) - 1) // length
    inputs, targets = (
        text[start : start + count * length].reshape(count, length).astype(np.int32)
        for start in (0, 1)
    )
    span = np.broadcast_to(np.arange(1, length + 1, dtype=np.int32), inputs.shape)
    return Samples(inputs, targets, span)
