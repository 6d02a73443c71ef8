"""The next byte of a text as a task: natural data beside the synthetic tasks."""

from pathlib import Path

import numpy as np

from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError

BYTES = 256


def next_byte(file: str = "", length: int = 256) -> Task:
    """Cut the bytes of a text to consecutive sequences; each byte is asked for.

    The first 90% are training samples, then come 5% for validation and 5% for the test. The span
    is the number of bytes before the answer.

    Args:
        file: The text; an incomplete last sequence is dropped.
        length: Bytes per sequence.

    Raises:
        InputError: The file cannot be read, or has fewer than 20 sequences.
    """
    try:
        text = np.frombuffer(Path(file).read_bytes(), np.uint8).astype(np.int32)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; give an existing file") from None
    count = (len(text) - 1) // length
    if count < 20:
        least = 20 * length + 1
        raise InputError(f"{file}: {len(text)} bytes; at least {least} for a length of {length}")
    inputs = text[: count * length].reshape(count, length)
    targets = text[1 : count * length + 1].reshape(count, length)
    span = np.broadcast_to(np.arange(1, length + 1, dtype=np.int32), inputs.shape)
    parts = np.array_split(np.arange(count), [count * 90 // 100, count * 95 // 100])
    training, validation, test = (Samples(inputs[p], targets[p], span[p]) for p in parts)
    return Task(BYTES, BYTES, training, validation, test, is_exact=False)
