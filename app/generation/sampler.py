"""Random tokens of one run, and the likeliest ones beside them."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from mlx_gateloop.generate import Sampling, sampler

CANDIDATES = 8
RECENT = 20  # tokens that the repetition penalty looks at: mlx-lm's default


class Drawn(NamedTuple):
    """A token `[1]` and the likeliest ones `[1, CANDIDATES]` with their log probabilities."""

    token: mx.array
    likeliest: mx.array
    log_probabilities: mx.array

    def candidates(self) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens, best first, and their probabilities."""
        ids, logs = np.array(self.likeliest)[0], np.array(self.log_probabilities)[0]
        best = np.argsort(-logs, kind="stable")
        return ids[best].tolist(), np.exp(logs[best]).tolist()


class Sampler:
    """Draws tokens after `ids` from a vocabulary of this size, and reports the likeliest ones."""

    def __init__(self, sampling: Sampling, vocabulary: int, ids: list[int]) -> None:
        self._draw, self._processors = sampler(sampling)
        self._recent = mx.array(ids[-RECENT:])
        self._candidates = min(CANDIDATES, vocabulary)

    def __call__(self, logits: mx.array) -> Drawn:
        """Draw a token from logits `[1, vocabulary]`; nothing is evaluated yet."""
        logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        most = mx.argpartition(-logs, self._candidates - 1, axis=-1)[:, : self._candidates]
        likeliest = mx.take_along_axis(logs, most, axis=-1)
        for process in self._processors:
            logs = process(self._recent, logs)
            logs = logs - mx.logsumexp(logs, axis=-1, keepdims=True)
        token = self._draw(logs)
        self._recent = mx.concatenate([self._recent, token])[-RECENT:]
        return Drawn(token, most, likeliest)
