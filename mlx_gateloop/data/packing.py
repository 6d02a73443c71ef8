"""Documents encoded to one stream of tokens, and its batches."""

import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlx_gateloop.data.documents import Document
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import largest_id, start_ids

_SLICE = 1 << 20  # characters encoded at once: encoding needs some hundred bytes per token


def encode(documents: Sequence[Document], tokenizer: Any) -> np.ndarray:
    """Encode documents to one stream `[N]`, uint16 or int32, each with the end of text, if any.

    Plain documents begin with the tokenizer's first token, if it adds one; text that looks like a
    special token stays text. Conversations pass through the chat template.
    """
    stream, start = array.array("i"), start_ids(tokenizer)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for document in documents:
        if isinstance(document, str):
            stream.extend(start)
            for text in _slices(document):
                stream.extend(
                    tokenizer.encode(
                        text, add_special_tokens=False, split_special_tokens=True, verbose=False
                    )
                )
        elif tokenizer.chat_template is None:
            raise InputError(
                "the text has conversations and this tokenizer no chat template; "
                "give plain text or another tokenizer"
            )
        else:
            stream.extend(tokenizer.apply_chat_template(document, return_dict=False))
        stream.extend(end)
    return np.array(stream, np.uint16 if largest_id(tokenizer) < 1 << 16 else np.int32)


def decoded_bytes(tokens: np.ndarray, tokenizer: Any) -> int:
    """Count the UTF-8 bytes of the characters that begin in these tokens of a stream."""
    for cut in range(4):  # a character has at most four bytes, and so at most three cut off
        text: str = tokenizer.decode(tokens[cut:].tolist(), skip_special_tokens=True)
        if not text.startswith("\N{REPLACEMENT CHARACTER}"):
            break
    return len(text.encode())


def _slices(text: str) -> Iterator[str]:
    """Cut the text to parts of at most `_SLICE` characters, after a line end if there is one."""
    start = 0
    while start < len(text):
        end = start + _SLICE
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


class Batches:
    """Shuffled windows of a stream, never copied; a batch is a function of (seed, epoch, index).

    An epoch has every window once. Targets of windows do not overlap; the first window starts at a
    random offset, which uses the tokens that do not fill a window.
    """

    def __init__(self, tokens: np.ndarray, batch_size: int, length: int, seed: int) -> None:
        needed = batch_size * length + 1
        if len(tokens) < needed:
            raise InputError(
                f"the training text has {len(tokens)} tokens and one batch of {batch_size} x"
                f" {length} needs {needed}; give more text or a smaller batch_size or length"
            )
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self._windows, self._spare = divmod(len(tokens) - 1, length)
        self._epoch, self._starts = -1, np.empty(0, np.int64)

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch; windows that do not fill a batch are left out."""
        return self._windows // self.batch_size

    @property
    def targets(self) -> int:
        """The number of targets in a batch."""
        return self.batch_size * self.length

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and the tokens that follow them, int32 `[batch_size, length]`."""
        if not 0 <= index < self.per_epoch:
            raise IndexError(f"index: expected 0 to {self.per_epoch - 1}, got {index}")
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._order(epoch)
        starts = self._starts[index * self.batch_size : (index + 1) * self.batch_size]
        window = self.tokens.take(starts[:, None] + np.arange(self.length + 1)).astype(np.int32)
        return window[:, :-1], window[:, 1:]

    def _order(self, epoch: int) -> np.ndarray:
        """The start of each window in the stream, in the epoch's order."""
        generator = np.random.default_rng((self.seed, epoch))
        offset = generator.integers(self._spare + 1)
        starts: np.ndarray = offset + self.length * generator.permutation(self._windows)
        return starts


def in_order(
    tokens: np.ndarray, batch_size: int, length: int, stride: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the windows of a stream in order; each token but the first counts once as a target.

    Windows start `stride` tokens apart (None: `length`); only the last `stride` targets count in
    all but the first. Yields inputs, targets, int32, and the mask of those that count, bool, all
    `[batch_size, length]`.
    """
    stride = length if stride is None else stride
    count = len(tokens) - 1
    windows = 1 + max(0, -(-(count - length) // stride)) if count > 0 else 0
    batch_size = min(batch_size, windows) or 1
    for first in range(0, windows, batch_size):
        starts = stride * np.arange(first, first + batch_size)[:, None]
        stream = tokens.take(starts + np.arange(length + 1), mode="clip").astype(np.int32)
        place = np.arange(length)
        is_new = (starts == 0) | (place >= length - stride)
        yield stream[:, :-1], stream[:, 1:], is_new & (starts + place < count)
