"""Tasks: sequences with an answer at every position or at some."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

UNASKED = -1  # a target that is not scored


@dataclass(frozen=True)
class Samples:
    """Sequences with their answers, all int32 `[N, L]`."""

    inputs: np.ndarray  # tokens
    targets: np.ndarray  # answers after each token; `UNASKED` is not scored
    # number of latest inputs that decide the answer; 0 is a convention of the task
    span: np.ndarray

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice) -> "Samples":
        return Samples(self.inputs[rows], self.targets[rows], self.span[rows])

    @property
    def asked(self) -> np.ndarray:
        """The mask of scored positions, bool `[N, L]`."""
        return self.targets != UNASKED


@dataclass(frozen=True)
class Task:
    """A task's three sets of samples, drawn independently."""

    vocab_size: int  # number of input tokens
    num_outputs: int  # number of answers
    training: Samples
    validation: Samples
    test: Samples
    marker: int | None = None  # the token at which to change the memory (a reset), if there is one
    is_exact: bool = True  # the inputs within the span decide the answer

    @property
    def sha256(self) -> str:
        """A fingerprint of the training and validation samples, stored in checkpoints."""
        return _sha256(self.training, self.validation)

    @property
    def fingerprint(self) -> str:
        return _sha256(self.training, self.validation, self.test)


@lru_cache(maxsize=1)
def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the numbers below `count` in a random order, a function of (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(count)


class SampleBatches:
    """Shuffled batches of samples, each once an epoch; a function of (seed, epoch, index)."""

    def __init__(self, samples: Samples, batch_size: int, seed: int) -> None:
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.per_epoch = -(-len(samples) // batch_size)

    @property
    def targets(self) -> float:
        count = len(self.samples)
        return min(self.batch_size, count) * int(self.samples.asked.sum()) / count

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, int32 `[batch_size, L]`, the last batch of an epoch maybe smaller."""
        order = shuffled(len(self.samples), self.seed, epoch)
        rows = order[index * self.batch_size : (index + 1) * self.batch_size]
        return self.samples.inputs[rows], self.samples.targets[rows]


def _sha256(*sets: Samples) -> str:
    digest = hashlib.sha256()
    for samples in sets:
        for array in (samples.inputs, samples.targets):
            digest.update(f"{array.shape}\n".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def draw_splits(
    draw: Callable[[np.random.Generator, int], Samples], sizes: tuple[int, int, int], seed: int
) -> tuple[Samples, Samples, Samples]:
    """Draw training, validation and test samples, each with its own random generator."""
    training, validation, test = (
        draw(np.random.default_rng((seed, split)), size) for split, size in enumerate(sizes)
    )
    return training, validation, test
