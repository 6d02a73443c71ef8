"""Documents encoded to one stream of tokens, and its batches."""

import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlx_gateloop.data.chats import answer_positions, chat_ids
from mlx_gateloop.data.documents import Document
from mlx_gateloop.data.task import shuffled
from mlx_gateloop.errors import InputError
from mlx_gateloop.tokenizer import largest_id, plain_ids, start_ids

_SLICE = 1 << 20  # characters encoded at once: encoding needs some hundred bytes per token


@dataclass(frozen=True)
class Stream:
    """Documents as one stream of tokens."""

    tokens: np.ndarray  # `[N]` integers, which may lie on disk
    starts: np.ndarray | None = None  # bool `[N]`, the documents' first tokens; None for one
    asked: np.ndarray | None = None  # bool `[N]`, tokens that count as targets; None for all

    @property
    def share(self) -> float:
        """The share of tokens that count as targets."""
        return 1.0 if self.asked is None else float(self.asked.mean())

    def windows(self, positions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return inputs, targets (-1: not asked), and any starts, at `[B, L + 1]` positions."""
        tokens = self.tokens.take(positions, mode="clip").astype(np.int32)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.asked is not None:
            targets = np.where(self.asked.take(positions[:, 1:], mode="clip"), targets, -1)
        if self.starts is None:
            return inputs, targets
        return inputs, targets, self.starts.take(positions[:, :-1], mode="clip")


def pack(documents: Sequence[Document], tokenizer: Any, answers: bool = False) -> Stream:
    """Encode documents to one stream, uint16 or int32, each with the end of text, if any.

    Plain documents begin with the tokenizer's first token, if it adds one; text that looks like a
    special token stays text. Conversations pass through the chat template. With `answers` only
    those of the assistant count as targets.
    """
    stream, starts, asked = array.array("i"), [], []
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for document in documents:
        starts.append(len(stream))
        if not isinstance(document, str):
            tools = getattr(document, "tools", None)
            ids = chat_ids(document, tokenizer, tools)
            if answers:
                positions = answer_positions(document, ids, tokenizer, tools)
                asked += [len(stream) + position for position in positions]
            stream.extend(ids)
        elif answers:
            raise InputError("data.loss_on: answers, but a text has none; give prompts or messages")
        else:
            stream.extend(start_ids(tokenizer))
            for text in _slices(document):
                stream.extend(plain_ids(tokenizer, text))
        stream.extend(end)
    if answers and not asked:
        raise InputError("data.loss_on: answers, but no message is the assistant's; give some")
    tokens = np.array(stream, np.uint16 if largest_id(tokenizer) < 1 << 16 else np.int32)
    first = _marked(len(tokens), starts) if len(starts) > 1 else None
    return Stream(tokens, first, _marked(len(tokens), asked) if answers else None)


def _marked(count: int, positions: list[int]) -> np.ndarray:
    mask = np.zeros(count + 1, bool)  # an empty document at the end has no token
    mask[positions] = True
    return mask[:-1]


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
    random offset, which uses the tokens that do not fill a window. With `carries` each row of a
    batch continues that row of the batch before, for a state that carries over.
    """

    def __init__(
        self, stream: Stream, batch_size: int, length: int, seed: int, carries: bool = False
    ) -> None:
        count, needed = len(stream.tokens), batch_size * length + 1
        if count < needed:
            reason = f"{count} tokens and one batch of {batch_size} x {length} needs {needed}"
            advice = "give more text or a smaller batch_size or length"
            raise InputError(f"the training text has {reason}; {advice}")
        self.stream, self.batch_size, self.length, self.seed = stream, batch_size, length, seed
        self.carries = carries
        self._windows = (count - 1) // length
        self._epoch, self._starts = -1, np.empty(0, np.int64)

    @property
    def per_epoch(self) -> int:
        """The number of batches in an epoch; windows that do not fill a batch are left out."""
        return self._windows // self.batch_size

    @property
    def targets(self) -> float:
        return self.batch_size * self.length * self.stream.share

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        """Return inputs, targets, and perhaps documents' starts, see `Stream.windows`."""
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._order(epoch)
        starts = self._starts[index * self.batch_size : (index + 1) * self.batch_size]
        return self.stream.windows(starts[:, None] + np.arange(self.length + 1))

    def _order(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.seed, epoch))
        windows = self.per_epoch * self.batch_size if self.carries else self._windows
        offset = generator.integers(len(self.stream.tokens) - windows * self.length)
        order = generator.permutation(self._windows)
        if self.carries:  # row r of each batch is in the r-th part of the stream
            order = np.arange(windows).reshape(self.batch_size, -1).T.reshape(-1)
        return offset + self.length * order


class DocumentBatches:
    """Shuffled pieces of documents, one a row; a batch is a function of (seed, epoch, index).

    A document is cut into pieces of at most `length` targets; the rest of a row is not asked.
    """

    def __init__(self, stream: Stream, batch_size: int, length: int, seed: int) -> None:
        first = [0] if stream.starts is None else np.flatnonzero(stream.starts).tolist()
        spans = zip(first, [*first[1:], len(stream.tokens)], strict=True)
        self._pieces = np.array(
            [(position, end) for start, end in spans for position in range(start, end - 1, length)]
        ).reshape(-1, 2)
        if not len(self._pieces):
            raise InputError("the text has fewer than two tokens; give a longer one")
        self._stream = replace(stream, starts=None)
        self.length, self._seed = length, seed
        self.batch_size = min(batch_size, len(self._pieces))
        self.per_epoch = len(self._pieces) // self.batch_size

    @property
    def tokens(self) -> float:
        """The mean number of tokens in a batch, without padding."""
        sizes = np.minimum(self._pieces[:, 1] - self._pieces[:, 0] - 1, self.length)
        return self.batch_size * float(sizes.mean())

    @property
    def targets(self) -> float:
        return self.tokens * self._stream.share

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        """Return inputs and targets, int32 `[batch_size, length]`."""
        order = shuffled(len(self._pieces), self._seed, epoch)
        return self._rows(order[index * self.batch_size : (index + 1) * self.batch_size])

    def in_order(self, most: int | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield all pieces once, or `most` from all over; the last batch may be smaller."""
        count = len(self._pieces)
        numbers = np.linspace(0, count - 1, min(most or count, count)).round().astype(int)
        for first in range(0, len(numbers), self.batch_size):
            yield self._rows(numbers[first : first + self.batch_size])

    def _rows(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        positions, ends = self._pieces[numbers].T[..., None]
        positions = positions + np.arange(self.length + 1)
        inputs, targets, *_ = self._stream.windows(positions)
        return inputs, np.where(positions[:, 1:] < ends, targets, -1)


def in_order(
    stream: Stream, batch_size: int, length: int, stride: int | None = None
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the windows of a stream in order; each token but the first counts once as a target.

    Windows start `stride` tokens apart (None: `length`); only the last `stride` targets count in
    all but the first, the others are -1. Yields what `Stream.windows` returns.
    """
    stride = length if stride is None else stride
    count = len(stream.tokens) - 1
    windows = 1 + max(0, -(-(count - length) // stride)) if count > 0 else 0
    batch_size = min(batch_size, windows) or 1
    for first in range(0, windows, batch_size):
        starts = stride * np.arange(first, first + batch_size)[:, None]
        inputs, targets, *begin = stream.windows(starts + np.arange(length + 1))
        position = np.arange(length)
        is_new = (starts == 0) | (position >= length - stride)
        yield inputs, np.where(is_new & (starts + position < count), targets, -1), *begin
