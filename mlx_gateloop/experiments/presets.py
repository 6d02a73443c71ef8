"""The presets of the experiments."""

from mlx_gateloop.experiments.experiment import TASKS, Experiment


def _train(
    size: tuple[int, int, int],
    batch_size: int,
    rate: float,
    every: tuple[int, int, int] | None = None,
    **others: object,
) -> dict[str, object]:
    """Name the settings of a training run; `warmup` is short for the optimizer's."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size")
    settings: dict[str, object] = {
        f"model.{name}": value for name, value in zip(names, size, strict=True)
    }
    settings |= {"data.batch_size": batch_size, "optimizer.learning_rate": rate}
    if every is not None:
        rhythm = ("log_every", "eval_every", "checkpoint_every")
        settings |= dict(zip(rhythm, every, strict=True))
    if "warmup" in others:
        settings["optimizer.warmup_steps"] = others.pop("warmup")
    return settings | others


# Source of "paper": appendix "MemoryHorizon hyperparameters"; 300 epochs are 18,900 steps.
# Source of recall's "author": the setup in the author's repository GatedLinearRNN.
# The others are ours.
_EXPERIMENTS = [
    Experiment(
        "memory-horizon",
        "small",
        {"length": 64, "max_input": 2, "max_output": 10, "samples": 8000},
        _train((4, 16, 32), 64, 1e-2, (100, 500, 500), warmup=100, steps=6000),
    ),
    Experiment(
        "memory-horizon",
        "running_sum",
        {"length": 64, "max_output": 4, "function": "running_sum"},
        _train((4, 16, 32), 32, 1e-2, warmup=100, steps=3000),
    ),
    Experiment(
        "memory-horizon",
        "paper",
        {},
        _train((4, 64, 128), 32, 0.0025, (63, 315, 63), warmup=10000, epochs=300),
        seeds=1, draws=1, equal_parameters=False,
    ),
    Experiment(
        "recall",
        "small",
        {"length": 32, "tokens": 8, "samples": 2000, "held_out": 200},
        _train((2, 32, 64), 32, 5e-3, steps=1000),
    ),
    Experiment(
        "recall", "author", {}, _train((2, 128, 256), 32, 1e-3, epochs=200), equal_parameters=False
    ),
    Experiment("induction", "small", {}, _train((2, 32, 64), 32, 5e-3, steps=3000)),
    Experiment(
        "text",
        "small",
        {},
        _train((2, 64, 128), 16, 0.0125, warmup=100, steps=1000),
        seeds=2, draws=1,
    ),
]  # fmt: skip
PRESETS = {name: {e.preset: e for e in _EXPERIMENTS if e.name == name} for name in TASKS}
