"""Ablations of what the paper leaves open: OUT/ablations.md, and experiments in OUT/NAME/."""

import sys
from collections.abc import Mapping
from pathlib import Path

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.measure import ACCURACY, differences, mean_and_spread, mean_difference
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.results import read_runs
from mlx_gateloop.experiments.run import check_new, run_experiment
from mlx_gateloop.experiments.variants import title
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.tables import markdown_table

OURS = "ours"
# What each changes in Memory Horizon's "small"; the others are compared with the first.
ABLATIONS: dict[str, tuple[str, dict[str, object]]] = {
    OURS: ("the preset", {}),
    "unclipped": ("gradients are not clipped (ours: norm 1)", {"optimizer.clip_norm": 1e9}),
    "clipped-harder": ("gradients clipped to norm 0.1", {"optimizer.clip_norm": 0.1}),
    "decay": (
        "transitions decay as other weights do (ours: never)",
        {"optimizer.state_transition_weight_decay": 0.05},
    ),
    "long-start": (
        "half-lives at the start spread from 1 to 64 tokens (ours: sigmoid of a normal)",
        {"model.longest_half_life": 64.0},
    ),
    "small-start": ("weights but the transitions' 0.58 of ours", {"initial_scale": 3**-0.5}),
    "post-norm": ("norms after the skips (ours: before)", {"model.norm_position": "post"}),
    "output-gate": ("a SiLU gate and a projection (ours: neither)", {"model.output_gate": True}),
    "unasked-resets": ("no loss at resets (ours: the answer 0)", {"task.at_resets": "unasked"}),
    "modulus": ("answers modulo max_output = 10 (ours: 11)", {"task.max_output": 9}),
}
SEEDS = 3


def run_ablations(
    out: Path,
    settings: Mapping[str, object] | None = None,
    seeds: int | None = None,
    resume: bool = False,
    command: str = "",
    jobs: int = 1,
) -> None:
    """Train data-controlled and fixed models with every change, as `run_experiment`."""
    shared = dict(settings or {})
    for name, (_, changes) in ABLATIONS.items():
        if taken := shared.keys() & {"weights", *changes}:
            raise InputError(f"--set {min(taken)}: the ablation {name} changes it; leave it out")
    experiments = {
        name: PRESETS["memory-horizon"]["small"].changed_by(
            shared | changes, seeds=SEEDS if seeds is None else seeds
        )
        for name, (_, changes) in ABLATIONS.items()
    }
    if resume and not (out / OURS / "experiment.json").exists():
        raise InputError(f"{out}: no ablations to resume; start without --resume")
    if not resume:
        check_new(out)
    try:
        for name, experiment in experiments.items():
            print(f"ablation: {name}", file=sys.stderr)
            begun = resume and (out / name / "experiment.json").exists()
            run_experiment(experiment, out / name, begun, command, jobs)
    finally:
        if any(read_runs(out / name) for name in ABLATIONS):
            write_text(out / "ablations.md", _report(out, experiments[OURS], shared, command))


def _report(out: Path, experiment: Experiment, shared: Mapping[str, object], command: str) -> str:
    results = {name: read_runs(out / name) for name in ABLATIONS}
    accuracies = {
        name: [ACCURACY.by_seed(runs.get(model, [])) for model in experiment.models]
        for name, runs in results.items()
    }
    rows = []
    for name, (text, _) in ABLATIONS.items():
        if any(accuracies[name]):
            row = [text]
            for by_seed, ours in zip(accuracies[name], accuracies[OURS], strict=True):
                row.append(mean_and_spread(list(by_seed.values())) if by_seed else "-")
                row.append("-" if name == OURS else mean_difference(differences(by_seed, ours)))
            parameters = (f"{runs[0]['parameters']:,}" for runs in results[name].values())
            lead = mean_difference(differences(*accuracies[name]))
            rows.append([*row, lead, ", ".join(parameters)])
    one, other = map(title, experiment.models)
    changed = ", ".join(f"{key}={value}" for key, value in shared.items())
    header = ["change", one, f"{one}: change", other, f"{other}: change", "lead", "parameters"]
    parts = [
        "# Ablations of what the paper leaves open",
        markdown_table(["", ""], list(facts(command).items())),
        f"Memory Horizon's preset small{changed and f' with {changed}'}, with one change at a "
        "time: test accuracy, mean and "
        "standard deviation over seeds. Changes are against the first row, and leads are those of "
        f"{one} over {other} transitions, both between runs of one seed, with Student's 95% "
        "intervals. Unasked resets and another modulus also change how hard a guess is.",
        markdown_table(header, rows),
    ]
    return "\n\n".join(parts) + "\n"
