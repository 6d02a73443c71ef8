"""The presets of the experiments."""

from mlx_gateloop.experiments.experiment import TASKS, Experiment


def _train(layers: int, width: int, inner: int, batch_size: int, rate: float) -> dict[str, object]:
    """Name the settings of every training."""
    return {
        "model.num_hidden_layers": layers,
        "model.hidden_size": width,
        "model.intermediate_size": inner,
        "data.batch_size": batch_size,
        "optimizer.learning_rate": rate,
    }


# Source of "paper": appendix "MemoryHorizon hyperparameters"; 300 epochs are 18,900 steps.
# Source of recall's "author": the setup in the author's repository GatedLinearRNN.
# The others are ours.
_EXPERIMENTS = [
    Experiment(
        "memory-horizon", "small",
        {"length": 64, "max_input": 2, "max_output": 10, "samples": 8000},
        _train(4, 16, 32, 64, 1e-2)
        | {"log_every": 100, "eval_every": 500, "checkpoint_every": 500}
        | {"optimizer.warmup_steps": 100, "steps": 6000},
    ),
    Experiment(
        "memory-horizon", "running_sum",
        {"length": 64, "max_output": 4, "function": "running_sum"},
        _train(4, 16, 32, 32, 1e-2) | {"optimizer.warmup_steps": 100, "steps": 3000},
    ),
    Experiment(
        "memory-horizon", "paper",
        {},
        _train(4, 64, 128, 32, 0.0025)
        | {"log_every": 63, "eval_every": 315, "checkpoint_every": 63}
        | {"optimizer.warmup_steps": 10000, "epochs": 300},
        seeds=1, draws=1, equal_parameters=False,
    ),
    Experiment(
        "recall", "small",
        {"length": 32, "tokens": 8, "samples": 2000, "held_out": 200},
        _train(2, 32, 64, 32, 5e-3) | {"steps": 1000},
    ),
    Experiment(
        "recall", "author", {},
        _train(2, 128, 256, 32, 1e-3) | {"epochs": 200}, equal_parameters=False,
    ),
    Experiment("induction", "small", {}, _train(2, 32, 64, 32, 5e-3) | {"steps": 3000}),
    Experiment(
        "text", "small",
        {},
        _train(2, 64, 128, 16, 0.0125) | {"optimizer.warmup_steps": 100, "steps": 1000},
        seeds=2, draws=1,
    ),
]  # fmt: skip
PRESETS = {name: {e.preset: e for e in _EXPERIMENTS if e.name == name} for name in TASKS}
