"""Interrupted training, and the comparison of what two runs wrote."""

import os
import signal
from itertools import count
from pathlib import Path

import mlx.core as mx
import pytest

# An experiment of seconds: keys of `Experiment.changed_by`.
TINY_EXPERIMENT = {
    "task.length": 12,
    "task.samples": 16,
    "task.held_out": 8,
    "model.hidden_size": 8,
    "model.num_hidden_layers": 2,
    "data.batch_size": 8,
    "optimizer.warmup_steps": 2,
    "steps": 6,
    "checkpoint_every": 2,
    "eval_every": 3,
    "log_every": 1,
}


def press_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, batches: type, number: int, times: int = 1
) -> None:
    """Press Ctrl-C while the batch of that number is drawn.

    Args:
        monkeypatch: Undoes it.
        batches: The class whose `batch` draws.
        number: From 1.
        times: Presses.
    """
    original = batches.batch
    numbers = count(1)

    def batch(self, epoch, index):
        if next(numbers) == number:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return original(self, epoch, index)

    monkeypatch.setattr(batches, "batch", batch)


def same_arrays(one: Path, other: Path) -> None:
    """Assert that two files hold the same arrays, to the last bit."""
    arrays, others = mx.load(str(one)), mx.load(str(other))
    assert arrays.keys() == others.keys()
    for key, array in arrays.items():
        assert mx.array_equal(array, others[key]), key
