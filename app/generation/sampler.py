"""Sampling of one run's tokens, with the likeliest alternatives."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_gateloop.generate import Sampling, sampler
from mlx_gateloop.model.lookup import processed

CANDIDATES = 8
RECENT = 64  # tokens for the repetition penalty, which looks at 20, and those that are taken back


class Ranked(NamedTuple):
    """Logits `[N, vocabulary]`; the likeliest tokens, their log probabilities `[N, CANDIDATES]`."""

    logits: mx.array
    likeliest: mx.array
    log_probabilities: mx.array

    def rows(self) -> "list[Ranked]":
        parts = [mx.split(each, len(self.logits)) for each in self]
        return [Ranked(*row) for row in zip(*parts, strict=True)]


def ranked(logits: mx.array) -> Ranked:
    """Rank the tokens by their logits `[N, vocabulary]`, without evaluating anything."""
    count = min(CANDIDATES, logits.shape[-1])
    top = mx.argpartition(-logits, count - 1, axis=-1)[:, :count]
    return Ranked(logits, top, mx.take_along_axis(_normalized(logits), top, axis=-1))


def _normalized(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


class Sample(NamedTuple):
    """Sampled tokens `[N]` and the likeliest ones `[N, CANDIDATES]` with log probabilities."""

    token: mx.array
    likeliest: mx.array
    log_probabilities: mx.array

    def candidates(self) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens of the first row, best first, and their probabilities."""
        ids, logs = np.array(self.likeliest)[0], np.array(self.log_probabilities)[0]
        best = np.argsort(-logs, kind="stable")
        return ids[best].tolist(), np.exp(logs[best]).tolist()

    def row(self, index: int) -> "Sample":
        return Sample(*(each[index : index + 1] for each in self))


class Sampler:
    """Samples tokens after `ids`; reports the likeliest ones."""

    def __init__(self, sampling: Sampling, ids: list[int]) -> None:
        self._draw, self._processors = sampler(sampling)
        self._recent = mx.array(ids[-RECENT:], mx.uint32)

    def __call__(self, after: Ranked, read: mx.array) -> Sample:
        """Sample a token after each of the tokens `[N]` that were read, without evaluating it."""
        logits = after.logits
        if self._processors:  # a penalty depends on the sign of a logit
            logits = processed(self._processors, self._recent, read, logits)
            self._recent = mx.concatenate([self._recent, read])[-RECENT:]
        return Sample(self._draw(_normalized(logits)), after.likeliest, after.log_probabilities)

    def back(self, tokens: int) -> None:
        """Take back the last tokens, as if they had not been read."""
        self._draw.back(tokens)
        self._recent = self._recent[: len(self._recent) - tokens]

    def skip(self, tokens: int) -> None:
        """Use up the random numbers of tokens that an earlier run has sampled."""
        for _ in range(tokens):
            self._draw(mx.zeros((1, 1)))
