"""Tiny runs, interrupted training, and the comparison of what two runs wrote."""

import os
import pydoc_data.topics
import signal
from itertools import count

import mlx.core as mx
import pytest

from mlx_gateloop.train import Interrupted, TrainConfig
from mlx_gateloop.train.config import OptimizerConfig
from mlx_gateloop.train.optimizer import make_optimizer

from .models import tiny_model

LAST = "checkpoints/last.safetensors"  # of a run
TEXT = "".join(pydoc_data.topics.topics.values())
TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "dropout": 0.1},
    "tokenizer.kind": "bytes", "data.length": 32, "data.batch_size": 4,
    "optimizer.learning_rate": 1e-2, "optimizer.weight_decay": 0.05,
    "steps": 12, "log_every": 2, "eval_every": 6, "checkpoint_every": 3,
}  # fmt: skip

# An experiment of seconds: keys of `Experiment.changed_by`.
TINY_EXPERIMENT = {
    "task.length": 12, "task.samples": 16, "task.held_out": 8,
    "model.hidden_size": 8, "model.num_hidden_layers": 2, "data.batch_size": 8, "log_every": 1,
    "optimizer.warmup_steps": 2, "steps": 6, "checkpoint_every": 2, "eval_every": 3,
}  # fmt: skip


def tiny_run(**changes):
    """A run of a second or two; `tiny_run(seed=1)` changes a key, with __ for the dot."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return TrainConfig.load(None, TINY | dotted)


def model_and_optimizer(seed=0, **options):
    model = tiny_model(seed, **options)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3, weight_decay=0.05), steps=10)
    optimizer.init(model.trainable_parameters())
    return model, optimizer


def press_ctrl_c(monkeypatch, batches, number, times=1):
    """Press Ctrl-C, and perhaps close the terminal, while a class draws the batch of a number."""
    original = batches.batch
    numbers = count(1)

    def batch(self, epoch, index):
        if next(numbers) == number:
            for request in (signal.SIGINT, signal.SIGINT, signal.SIGHUP)[:times]:
                os.kill(os.getpid(), request)
        return original(self, epoch, index)

    monkeypatch.setattr(batches, "batch", batch)


def interrupted(batches, number, call, *arguments, times=1, **options):
    """Return the line with which Ctrl-C in the batch of a number ends a call."""
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c(patch, batches, number, times)
        with pytest.raises(Interrupted) as error:
            call(*arguments, **options)
    return str(error.value)


def same_arrays(one, other):
    """Assert that two files hold the same arrays, to the last bit."""
    arrays, others = mx.load(str(one)), mx.load(str(other))
    assert arrays.keys() == others.keys()
    for key, array in arrays.items():
        assert mx.array_equal(array, others[key]), key
