"""What an experiment consists of, and the settings that have a name."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from mlx_gateloop.data.memory_horizon import memory_horizon
from mlx_gateloop.data.recall import induction, recall
from mlx_gateloop.data.task import Task
from mlx_gateloop.errors import InputError
from mlx_gateloop.train import TrainConfig

TASKS: dict[str, Callable[..., Task]] = {
    "memory-horizon": memory_horizon,
    "recall": recall,
    "induction": induction,
}
MAY_BE_ZERO = {"resets", "max_input", "max_output", "seed"}
# What the experiment itself decides for each run.
DECIDED = {"seed": "--seeds", "model.transition": "--transitions", "data.length": "task.length"}


@dataclass(frozen=True)
class Experiment:
    """Models that differ in their state transition alone, each trained with several seeds.

    Args:
        name: a key of `TASKS`.
        preset: the name of these settings.
        task: arguments of the task's generator; the others keep their defaults.
        train: values of `TrainConfig` by dotted key.
        seeds: the training's seeds are 0 to seeds - 1; the data is the same for all.
        transitions: the values of `ModelArgs.transition` to compare.
    """

    name: str
    preset: str
    task: dict[str, Any]
    train: dict[str, Any]
    seeds: int = 3
    transitions: tuple[str, ...] = ("data_controlled", "fixed")

    def changed_by(self, settings: dict[str, Any]) -> "Experiment":
        """With other values, by key: `task.*`, `seeds`, `transitions`, or a key of `TrainConfig`.

        Raises:
            InputError: a key that is decided elsewhere, or no number of seeds or names.
        """
        seeds = settings.get("seeds", self.seeds)
        if type(seeds) is not int or seeds < 1:
            raise InputError(f"seeds: expected an integer >= 1, got {seeds!r}")
        transitions = settings.get("transitions", self.transitions)
        if isinstance(transitions, str):
            transitions = transitions.split(",")
        if not isinstance(transitions, list | tuple):
            raise InputError(f"transitions: expected names, got {transitions!r}")
        task, train = dict(self.task), dict(self.train)
        for key, value in settings.items():
            if key in DECIDED:
                raise InputError(f"--set {key}: use {DECIDED[key]}")
            if key.startswith("task."):
                task[key.removeprefix("task.")] = value
            elif key not in ("seeds", "transitions"):
                if key in ("steps", "epochs"):
                    train = {k: v for k, v in train.items() if k not in ("steps", "epochs")}
                train[key] = value
        return Experiment(self.name, self.preset, task, train, seeds, tuple(transitions))

    def make_task(self) -> Task:
        """Draw the samples.

        Raises:
            InputError: an unknown key, or a value that cannot be used.
        """
        parameters = signature(TASKS[self.name]).parameters
        for key, value in self.task.items():
            if key not in parameters:
                raise InputError(f"unknown key task.{key}; allowed: {', '.join(parameters)}")
            lowest = 0 if key in MAY_BE_ZERO else 1
            if isinstance(parameters[key].default, str):
                good, expected = isinstance(value, str), "a name"
            else:
                good, expected = type(value) is int and value >= lowest, f"an integer >= {lowest}"
            if not good:
                raise InputError(f"task.{key}: expected {expected}, got {value!r}")
        return TASKS[self.name](**self.task)

    def config(self, task: Task, transition: str, seed: int) -> TrainConfig:
        """The training configuration of one of the runs."""
        decided = {
            "model.transition": transition,
            "model.num_outputs": task.num_outputs,
            "data.length": task.training.inputs.shape[1],
            "seed": seed,
        }
        return TrainConfig.load(None, {"model": {}} | self.train | decided)


def _train(size: tuple[int, int, int], batch_size: int, **others: Any) -> dict[str, Any]:
    layers, width, inner = size
    return {
        "model.num_hidden_layers": layers,
        "model.hidden_size": width,
        "model.intermediate_size": inner,
        "data.batch_size": batch_size,
        **{key.replace("__", "."): value for key, value in others.items()},
    }


# Source of "paper": appendix "MemoryHorizon hyperparameters"; 300 epochs are 18,900 steps.
# Source of recall's "author": the setup in the repository GatedLinearRNN.
# The others are ours, made to show the effect within minutes.
PRESETS: dict[str, dict[str, Experiment]] = {
    "memory-horizon": {
        "small": Experiment(
            "memory-horizon",
            "small",
            {"length": 64, "max_input": 2, "max_output": 10},
            _train(
                (4, 16, 32),
                64,
                optimizer__learning_rate=1e-2,
                optimizer__warmup_steps=100,
                steps=2500,
            ),
        ),
        "bar": Experiment(
            "memory-horizon",
            "bar",
            {"length": 64, "max_output": 4, "function": "running_sum"},
            _train(
                (4, 16, 32),
                32,
                optimizer__learning_rate=1e-2,
                optimizer__warmup_steps=100,
                steps=800,
            ),
        ),
        "paper": Experiment(
            "memory-horizon",
            "paper",
            {},
            _train(
                (4, 64, 128),
                32,
                optimizer__learning_rate=0.0025,
                optimizer__warmup_steps=10000,
                epochs=300,
                log_every=63,
                eval_every=315,
                checkpoint_every=63,
            ),
            seeds=1,
        ),
    },
    "recall": {
        "small": Experiment(
            "recall",
            "small",
            {"length": 32, "tokens": 8, "samples": 2000, "held_out": 200},
            _train((2, 32, 64), 32, optimizer__learning_rate=5e-3, steps=1000),
        ),
        "author": Experiment(
            "recall",
            "author",
            {},
            _train((2, 128, 256), 32, optimizer__learning_rate=1e-3, epochs=200),
        ),
    },
    "induction": {
        "small": Experiment(
            "induction",
            "small",
            {},
            _train((2, 32, 64), 32, optimizer__learning_rate=5e-3, steps=3000),
        ),
    },
}
