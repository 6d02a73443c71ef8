"""An experiment: its task, its models, and how they are trained."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter

from mlx_gateloop.configuration import read_json
from mlx_gateloop.data.memory_horizon import memory_horizon
from mlx_gateloop.data.next_byte import SPLITS, next_byte
from mlx_gateloop.data.recall import induction, recall
from mlx_gateloop.data.task import Task
from mlx_gateloop.errors import InputError, shortened, shown
from mlx_gateloop.experiments.records import Chosen, RunRecord, Tunable, read_record
from mlx_gateloop.experiments.variants import REFERENCE, VARIANTS
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.models import config_of
from mlx_gateloop.model.lm import Model
from mlx_gateloop.model.registered import module
from mlx_gateloop.train import TrainConfig
from mlx_gateloop.train.config import TokenizerConfig
from mlx_gateloop.train.setup import num_parameters

TASKS: dict[str, Callable[..., Task]] = {
    "memory-horizon": memory_horizon,
    "recall": recall,
    "induction": induction,
    "text": next_byte,
}
MAY_BE_ZERO = {"resets", "max_input", "max_output", "seed"}
LARGEST = 2**20  # value of a task's argument: sums of products stay far below 2^63
MAX_RUNS = 1000  # per model, as for its draws and its trials
# What all runs have in common: `variants` and `tuning` decide the start of each model.
BASE: dict[str, Any] = {"model": {}, "start": "published"}
# Keys that the experiment itself sets for each run.
DECIDED = {"seed": "use --seeds", "data.length": "use task.length"}
DECIDED |= dict.fromkeys(("model", "data", "optimizer"), "set its keys one by one")
DECIDED |= dict.fromkeys(("model.num_outputs", "model.vocab_size"), "the task decides")
DECIDED["lora_rank"] = "experiments train all weights; leave it out"
UNUSED = ["sample_tokens", "optimizer.exchange_dtype", "tokenizer"]
UNUSED += [f"tokenizer.{key.name}" for key in fields(TokenizerConfig)]
UNUSED += [f"data.{k}" for k in ("loss_on", "packed", "reset_at_documents", "validation_fraction")]
DECIDED |= dict.fromkeys(UNUSED, "only for `gateloop train`; leave it out")


@dataclass(frozen=True)
class Experiment:
    """Models to compare, each trained with several seeds; seed n has draw n % draws of the data."""

    name: str  # a key of `TASKS`
    preset: str  # name of the preset it started from
    task: dict[str, object]  # arguments of the task's generator
    # values of `TrainConfig` by dotted key; `weights` is an experiment whose runs these continue
    train: dict[str, object]
    seeds: int = 5
    draws: int = 5  # draws of the data
    trials: int = 0  # settings that are tried for each model before its runs; 0 takes the preset's
    models: tuple[str, ...] = (REFERENCE, "fixed")  # names of `VARIANTS`
    equal_parameters: bool = True  # by the width of channel mixing
    # each model's values over `train`, as another experiment chose them
    settings: Mapping[str, Chosen] = field(default_factory=dict)
    data: tuple[str, ...] = ()  # fingerprint of each draw's samples; empty before they are drawn

    @classmethod
    def read(cls, tree: dict[str, Any], path: Path) -> "Experiment":
        """Make an experiment of the fields that `save` wrote; errors name the path."""
        try:
            experiment = TypeAdapter(cls).validate_python(tree)
            if experiment.name not in TASKS or tree.keys() - {field.name for field in fields(cls)}:
                raise ValueError
        except ValueError:
            raise InputError(f"{path}: not an experiment; choose another directory") from None
        try:
            experiment.check()
            experiment.check_task()
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return experiment

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")

    def changed_by(
        self,
        settings: Mapping[str, object] | None = None,
        tuned: Mapping[str, Chosen] | None = None,
        **values: Any,
    ) -> "Experiment":
        """Return a copy with other `values`, except None, and settings of task and training.

        `settings` have keys such as `task.length` or those of `TrainConfig`; `tuned` are another
        experiment's choices for each model.
        """
        settings = settings or {}
        if values.get("models") is not None:
            values["models"] = tuple(values["models"])
        new = replace(self, **{k: value for k, value in values.items() if value is not None})
        new.check()
        if tuned is not None:
            if new.trials:
                raise InputError("tune: another experiment's settings need no trials; leave it out")
            if missing := [name for name in new.models if name not in tuned]:
                lacks = f"the other experiment has not chosen settings of {missing[0]}"
                raise InputError(f"models: {lacks}; leave it out, or --resume the other one")
            new = replace(new, settings={name: tuned[name] for name in new.models})
        decided = DECIDED | {f"model.{k}": "use --models" for m in new.models for k in VARIANTS[m]}
        theirs = "the other experiment chose it; leave it out"
        # Settings without a longest half-life mean the published start.
        decided |= {k: theirs for chosen in new.settings.values() for k in ("start", *chosen)}
        if new.trials:
            tried = {"start", *get_args(Tunable)} - {"optimizer.learning_rate"}  # it is the centre
            decided |= dict.fromkeys(tried, "--tune decides it; leave it out")
            decided["patience"] = "budgets of --tune are equal; leave it out"
        if new.trials or new.name == "text":  # whose draws overlap
            decided["weights"] = "trials and texts begin untrained; leave it out"
        if wrong := next((key for key in settings if key in decided), None):
            raise InputError(f"--set {wrong}: {decided[wrong]}")
        lengths = {"steps", "epochs"}
        if lengths <= settings.keys():
            raise InputError("--set steps and --set epochs: give one of them")
        replaced = lengths if lengths & settings.keys() else set()
        task = {k.removeprefix("task."): v for k, v in settings.items() if k[:5] == "task."}
        train = {key: value for key, value in self.train.items() if key not in replaced}
        train |= {key: value for key, value in settings.items() if key[:5] != "task."}
        return replace(new, task=self.task | task, train=train)

    def make_task(self, draw: int = 0) -> Task:
        """Draw the samples; the seed of a draw is that many after the task's."""
        self.check_task()
        seed: Any = self.task.get("seed", signature(TASKS[self.name]).parameters["seed"].default)
        task = TASKS[self.name](**(self.task | {"seed": seed + draw}))
        for part in ("training", "validation", "test"):
            if not getattr(task, part).asked.any():
                raise InputError(f"the task's {part} samples have no targets; change task.*")
        if draw < len(self.data) and self.data[draw] != task.fingerprint:
            file = self.task.get("file", "the task")
            raise InputError(f"{file}: differs from the experiment's data; restore it")
        return task

    def check(self) -> None:
        counts = {"seeds": (self.seeds, 1), "draws": (self.draws, 1), "tune": (self.trials, 0)}
        for name, (given, least) in counts.items():
            # a text has no more draws, and the last is the trials'
            most = SPLITS - 1 if (self.name, name) == ("text", "draws") else MAX_RUNS
            if not least <= given <= most:
                raise InputError(f"{name}: expected {least} to {most}, got {given}")
        for name in self.models:
            if name not in VARIANTS:
                raise InputError(f"models: unknown {shown(name)}; choose {', '.join(VARIANTS)}")
            if self.models.count(name) > 1:
                raise InputError(f"models: {name} is given more than once")

    def check_task(self) -> None:
        parameters = signature(TASKS[self.name]).parameters
        for key, value in self.task.items():
            if key not in parameters:
                allowed = ", ".join(parameters)
                raise InputError(f"unknown key task.{shortened(key)}; allowed: {allowed}")
            lowest = 0 if key in MAY_BE_ZERO else 1
            if isinstance(parameters[key].default, str):
                good, expected = isinstance(value, str), "a name"
            else:
                good = type(value) is int and lowest <= value <= LARGEST
                expected = f"an integer from {lowest} to {LARGEST}"
            if not good:
                raise InputError(f"task.{key}: expected {expected}, got {shown(value)}")

    def config(
        self, task: Task, model: str, seed: int, settings: Mapping[Any, object] | None = None
    ) -> TrainConfig:
        """Return the training configuration of a run; `settings` are values over `train`."""
        length = task.training.inputs.shape[1]
        decided = {"model.num_outputs": task.num_outputs, "data.length": length, "seed": seed}
        decay = 0.0 if self.train.get("optimizer.name") == "muon" else 0.05  # Muon's is coupled

        def load(name: str, settings: Mapping[Any, object], base: str | None = None) -> TrainConfig:
            variant = {f"model.{key}": value for key, value in VARIANTS[name].items()}
            if "longest_half_life" in VARIANTS[name]:  # None: the published start
                variant["start"] = "published"
            chosen = dict(self.settings.get(name, {})) | dict(settings)
            values = BASE | {"optimizer.weight_decay": decay} | self.train
            values |= variant | chosen | decided | {"weights": base}
            if "model_type" in VARIANTS[name]:  # it has fewer fields, and as many outputs as ids
                args = module(str(VARIANTS[name]["model_type"])).ModelArgs
                known = {f"model.{field.name}" for field in fields(args)}
                if unknown := [k for k in self.train if k[:6] == "model." and k not in known]:
                    raise InputError(f"models: {name} has no {unknown[0]}; leave one of them out")
                values = {k: v for k, v in values.items() if k in known or k[:6] != "model."}
                values["model.vocab_size"] = max(task.vocab_size, task.num_outputs)
            return TrainConfig.load(None, values)

        config = load(model, settings or {})
        if self.equal_parameters and model != REFERENCE:
            goal = num_parameters(Model(load(REFERENCE, {}).model_args(task.vocab_size)))
            try:
                args = equal_parameters(config.model_args(task.vocab_size), goal)
            except InputError as error:
                advice = "leave it out, or give --no-equal-parameters"
                raise InputError(f"models: {model} has {error}; {advice}") from None
            config.model["intermediate_size"] = args.intermediate_size
        if (folder := self.train.get("weights")) is not None:
            run = Path(str(folder), "runs", f"{model}-{seed}")
            _check_base(run, config_of(config.model_args(task.vocab_size)))
            config = load(model, settings or {}, str(run))
        return config


def _check_base(run: Path, shape: Mapping[str, object]) -> None:
    """Raise InputError if a run is not finished, or its model has another shape."""
    record = read_record(run / "test.json", RunRecord)
    if record is None or not record["finished"] or record.get("diverged"):
        raise InputError(f"--set weights: no finished run in {run}; give an experiment's folder")
    theirs = read_json(run / "config.json")
    for key, value in shape.items():
        if key != "longest_half_life" and (other := theirs.get(key)) != value:
            given = f"model.{key} {shown(other)} there, {shown(value)} here"
            raise InputError(f"{run}: {given}; give the same task, model.* and --equal-parameters")


def equal_parameters(args: Any, goal: int) -> Any:
    """Choose the width of channel mixing that brings a model closest to a number of parameters."""
    # The count is linear in the width. The models are never evaluated, so they take no memory.
    shapes = (replace(args, intermediate_size=width) for width in (1, 2))
    least, next_to_least = (num_parameters(module(args.model_type).Model(each)) for each in shapes)
    if (wider := round((goal - least) / (next_to_least - least))) < 0:
        raise InputError(f"{least:,} parameters or more, the reference has {goal:,}")
    return replace(args, intermediate_size=1 + wider)
