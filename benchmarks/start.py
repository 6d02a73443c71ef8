"""The worth of each part of the spread start: a text's bits per byte without it.

    python benchmarks/start.py --out runs/start

trains the data-controlled model of `gateloop experiment text` with `start: spread`, without each of
its parts, and with the published start, and prints the table. The same command again continues:
runs in DIR/bits.json are not repeated.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from embedded_models.arguments import errors_in_one_line

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.experiments.measure import BITS, differences, mean_and_spread, mean_difference
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.runs import Run
from mlx_gateloop.experiments.variants import REFERENCE
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.model import gates

RATE = "optimizer.state_transition_learning_rate"
WHOLE = "the spread start"


def starts(rate: float, share: float) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Map each start to its settings and to the constants of `model.gates` that it replaces."""
    return {
        WHOLE: ({}, {}),
        "half-lives of 1 token": ({"model.longest_half_life": 1.0001}, {}),
        "phases of 0": ({}, {"PHASES": (1e-9, 1e-9)}),
        "the text's part of gates not smaller": ({}, {"DATA_DEPENDENT": {"gamma": 1, "theta": 1}}),
        "input scaled at the start only": ({"model.input_scale": False}, {}),
        "transitions at the base rate": ({RATE: rate}, {}),
        f"published, transitions at {share:g} of the rate": ({"start": "published"}, {}),
        "published": ({"start": "published", RATE: rate}, {}),
    }


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--text", default="python-source", metavar="FILE")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument(
        "--share", type=float, default=0.1, help="the transitions' rate over --rate"
    )
    arguments = parser.parse_args()
    experiment = PRESETS["text"]["small"].changed_by(
        {"task.file": arguments.text, "steps": arguments.steps, "eval_every": 250}, models=["fixed"]
    )
    rate, share = arguments.rate, arguments.share
    chosen = {"start": "spread", "optimizer.learning_rate": rate, RATE: rate * share}
    file = arguments.out / "bits.json"
    options = {name: getattr(arguments, name) for name in ("text", "steps", "rate", "share")}
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"options": options}
    if found["options"] != options:
        parser.error(f"{file}: made with {found['options']}; choose another --out")
    bits: dict[str, dict[str, float]] = found.setdefault("bits", {})
    for seed in range(arguments.seeds):
        for number, (name, (settings, constants)) in enumerate(starts(rate, share).items()):
            if str(seed) in bits.setdefault(name, {}):
                continue
            folder = arguments.out / f"start-{number}" / f"{REFERENCE}-{seed}"
            run = Run(experiment, REFERENCE, seed, 0, folder, chosen | settings)
            with patch.dict(vars(gates), constants):
                run.go()
            record = run.read()
            assert record is not None
            bits[name][str(seed)] = round(BITS.of(record), 4)
            write_text(file, json.dumps(found, indent=1) + "\n")
    print(table(bits))


def table(bits: Mapping[str, Mapping[Any, float]]) -> str:
    """Format the bits per byte of each start, and its loss against the whole start."""
    rows = [
        [
            name,
            mean_and_spread([*by_seed.values()]),
            "" if name == WHOLE else mean_difference(differences(by_seed, bits[WHOLE])),
        ]
        for name, by_seed in bits.items()
    ]
    return markdown_table(["start", "bits per byte", "more than the spread start (95%)"], rows)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
