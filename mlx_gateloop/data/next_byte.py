"""A text as a task: the next byte, everywhere. A probe of what the synthetic tasks leave out."""

from pathlib import Path

import numpy as np

from mlx_gateloop.data.task import Samples, Task
from mlx_gateloop.errors import InputError

BYTES = 256


def next_byte(file: str = "", length: int = 256) -> Task:
    """The bytes of a text in sequences that follow one another, each byte asked for.

    The first 90% are to train on, then 5% to validate and 5% to test with. The span is the number
    of bytes that there are to tell the next one from.

    Args:
        file: The text; what is left behind its last whole sequence is not used.
        length: Bytes a sequence.

    Raises:
        InputError: The file cannot be read, or has fewer than 20 sequences.
    """
    try:
        text = np.frombuffer(Path(file).read_bytes(), np.uint8).astype(np.int32)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; give a text that is there") from None
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
