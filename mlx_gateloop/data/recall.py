"""Two tasks of memory by content: associative recall at every position, and an induction head."""

import numpy as np

from mlx_gateloop.data.task import UNASKED, Samples, Task, draw_splits
from mlx_gateloop.errors import InputError


def recall(
    length: int = 100, tokens: int = 30, samples: int = 6000, held_out: int = 500, seed: int = 0
) -> Task:
    """Associative recall, asked at every position.

    Tokens are independent and uniform. The answer after a token is the one that followed its last
    occurrence, or `tokens` if it is new; the span counts the inputs since, 0 for a new token.
    Source: the paper's author's later repository GatedLinearRNN, data/associative_recall.py, and
    its sizes. There validation sequences are also training sequences (their seeds overlap); here
    all sets are independent.
    """

    def draw(generator: np.random.Generator, count: int) -> Samples:
        inputs = generator.integers(0, tokens, (count, length), np.int32)
        return Samples(inputs, *recalled(inputs, tokens))

    return Task(tokens, tokens + 1, *draw_splits(draw, (samples, held_out, held_out), seed))


def recalled(inputs: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the token after each token's last occurrence, and the span, int32 `[N, L]` each."""
    rows = np.arange(len(inputs))
    seen = np.full((len(inputs), tokens), -1)  # the last position of each token
    targets = np.full(inputs.shape, tokens, np.int32)
    span = np.zeros(inputs.shape, np.int32)
    for now, token in enumerate(inputs.T):
        before = seen[rows, token]
        known = before >= 0
        targets[known, now] = inputs[rows[known], before[known] + 1]
        span[known, now] = now - before[known] + 1
        seen[rows, token] = now
    return targets, span


def induction(
    length: int = 30, tokens: int = 19, samples: int = 5000, held_out: int = 500, seed: int = 0
) -> Task:
    """An induction head: the token that followed the marker.

    The marker, token `tokens`, is at one uniform position and at the end, which alone is asked; the
    other tokens are independent and uniform. The span counts the inputs from the first marker on.
    Source: the induction head task of H3 (Fu et al. 2023, which the paper cites) and its sizes.
    """
    if length < 3:
        raise InputError(f"task.length must be at least 3, got {length}")

    def draw(generator: np.random.Generator, count: int) -> Samples:
        rows = np.arange(count)
        inputs = generator.integers(0, tokens, (count, length), np.int32)
        first = generator.integers(0, length - 2, count)
        inputs[rows, first] = inputs[:, -1] = tokens
        targets = np.full(inputs.shape, UNASKED, np.int32)
        targets[:, -1] = inputs[rows, first + 1]
        span = np.zeros(inputs.shape, np.int32)
        span[:, -1] = length - first
        return Samples(inputs, targets, span)

    splits = draw_splits(draw, (samples, held_out, held_out), seed)
    return Task(tokens + 1, tokens, *splits, marker=tokens)
