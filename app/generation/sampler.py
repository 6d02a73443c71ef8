"""Sampling of one run's tokens, with the likeliest alternatives."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_gateloop.generate import Sampling, sampler

CANDIDATES = 8
RECENT = 20  # tokens of the repetition penalty: mlx-lm's default


class Sample(NamedTuple):
    """A sampled token `[1]` and the likeliest ones `[1, CANDIDATES]` with log probabilities."""

    token: mx.array
    likeliest: mx.array
    log_probabilities: mx.array

    def candidates(self) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens, best first, and their probabilities."""
        ids, logs = np.array(self.likeliest)[0], np.array(self.log_probabilities)[0]
        best = np.argsort(-logs, kind="stable")
        return ids[best].tolist(), np.exp(logs[best]).tolist()


class Sampler:
    """Samples tokens after `ids` from a vocabulary of this size; reports the likeliest ones."""

    def __init__(self, sampling: Sampling, vocabulary: int, ids: list[int]) -> None:
        self._sample, self._processors = sampler(sampling)
        self._recent = mx.array(ids[-RECENT:])
        self._candidates = min(CANDIDATES, vocabulary)

    def __call__(self, logits: mx.array) -> Sample:
        """Sample a token from logits `[1, vocabulary]` without evaluating anything."""
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        top = mx.argpartition(-logs, self._candidates - 1, axis=-1)[:, : self._candidates]
        likeliest = mx.take_along_axis(logs, top, axis=-1)
        for process in self._processors:
            logs = process(self._recent, logs)
            logs = logs - mx.logsumexp(logs, axis=-1, keepdims=True)
        token = self._sample(logs)
        self._recent = mx.concatenate([self._recent, token])[-RECENT:]
        return Sample(token, top, likeliest)

    def skip(self, tokens: int) -> None:
        """Use up the random numbers of tokens that an earlier run has sampled."""
        for _ in range(tokens):
            self._sample(mx.zeros((1, 1)))
