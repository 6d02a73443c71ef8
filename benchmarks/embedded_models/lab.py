"""The two models of the Memory lab: trained, tested and packaged.

    python -m benchmarks.embedded_models.lab runs/lab app/embedded_models/lab

README.md, the card of both, is written by hand and stays.
"""

import json
import shutil
import sys
from pathlib import Path

from mlx_gateloop.app.generation.files import SUMS

from mlx_gateloop.__main__ import main as gateloop
from mlx_gateloop.io.files import staged

from .arguments import errors_in_one_line, paths
from .package import sums, thinned

STEPS = 3000
# For each model, the setting with the lowest validation loss among the twelve that were tried; the
# model card gives the command.
SETTINGS: dict[str, dict[str, float]] = {
    "data_controlled": {
        "optimizer.learning_rate": 0.00794,
        "optimizer.state_transition_learning_rate": 0.00305,
        "model.longest_half_life": 3.56,
    },
    "fixed": {
        "optimizer.learning_rate": 0.0107,
        "optimizer.state_transition_learning_rate": 0.0716,
    },
}
KEPT = ("config.json", "config.yaml", "model.safetensors")
TESTED = ("parameters", "steps", "loss", "accuracy", "asked_by_span", "right_by_span")


def command(model: str, out: Path) -> list[str]:
    """Return the words of the command that trains one of the models, after `gateloop`."""
    words = ["experiment", "memory-horizon", "--preset", "running_sum", "--models", model]
    words += ["--seeds", "1", "--draws", "1", "--out", str(out)]
    if (out / "experiment.json").exists():
        words.append("--resume")
    for key, value in {"steps": STEPS, **SETTINGS[model]}.items():
        words += ["--set", f"{key}={value}"]
    return words


def embed(run: Path, out: Path) -> None:
    """Write a run's best weights, in float32, and its results to a directory."""
    with staged(out) as made:
        made.mkdir()
        for name in KEPT:
            shutil.copy(run / name, made)
        (made / "log.jsonl").write_text(thinned((run / "log.jsonl").read_text()))
        tested = json.loads((run / "test.json").read_text())
        kept = {key: tested[key] for key in TESTED}
        (made / "test.json").write_text(json.dumps(kept) + "\n")
        (made / SUMS).write_text(sums(made))


def main() -> None:
    runs, out = paths(__doc__, "runs", "models")
    for model in SETTINGS:
        if code := gateloop(command(model, runs / model)):
            sys.exit(code)
        embed(runs / model / "runs" / f"{model}-0", out / model.replace("_", "-"))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
