"""Schemas of run and experiment records."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, FiniteFloat, Strict, ValidationError, model_validator

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError

MAX_BYTES = 2**28  # per record, which grows with seeds, trials and spans

Count = Annotated[int, Field(ge=0, lt=2**53)]
# The settings that tuning chooses.
Tunable = Literal[
    "optimizer.learning_rate",
    "optimizer.state_transition_learning_rate",
    "model.longest_half_life",
    "model.input_scale",
    "model.num_heads",
]
Number = Annotated[int, Strict()] | Annotated[float, Strict()]
Positive = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
Chosen = dict[Tunable, Annotated[Positive | Literal[True], Field(union_mode="left_to_right")]]


class Record(BaseModel, strict=True):
    """The part that trials and runs have."""

    model: str
    seed: int
    finished: bool
    diverged: bool = False
    steps: Count
    total_steps: Count
    seconds: FiniteFloat


class TrialRecord(Record):
    """A trial's record."""

    settings: Chosen
    validation_loss: FiniteFloat | None

    @model_validator(mode="after")
    def _has_a_rate(self) -> "TrialRecord":
        if "optimizer.learning_rate" not in self.settings:
            raise ValueError("settings without a learning rate")
        return self


class Magnitudes(BaseModel, strict=True):
    """The result of `resets.mean_magnitudes`: a list of channels for each layer."""

    at_marker: list[list[FiniteFloat]]
    elsewhere: list[list[FiniteFloat]]
    resetting: list[Count]


class Made(BaseModel, strict=True):
    """The date, processor and versions of a run."""

    date: str
    CPU: str
    versions: str


class RunRecord(Record):
    """A run's record, with its result on the test samples."""

    made: Made | None = None
    parameters: Count
    intermediate_size: Count
    loss: FiniteFloat
    accuracy: FiniteFloat
    asked_by_span: list[Count]
    right_by_span: list[Count]
    magnitudes: Magnitudes | None

    @model_validator(mode="after")
    def _has_as_many_answers(self) -> "RunRecord":
        pairs = zip(self.right_by_span, self.asked_by_span, strict=True)
        if any(right > asked for right, asked in pairs) or not any(self.asked_by_span):
            raise ValueError("more right answers than questions, or no question")
        return self


class _Experiment(BaseModel, strict=True):
    name: str


class _Model(BaseModel, strict=True):
    state_size: Count | None


class _Results(BaseModel, strict=True):
    """The parts of results.json that are read."""

    experiment: _Experiment
    environment: dict[str, str]
    oracles: dict[str, FiniteFloat]
    models: dict[str, _Model]
    curves: dict[str, list[list[Annotated[tuple[int, float], Strict(False)]]]] = {}
    trials: dict[str, list[TrialRecord]] = {}
    runs: list[RunRecord]

    @model_validator(mode="after")
    def _has_every_model(self) -> "_Results":
        if {run.model for run in self.runs} - self.models.keys():
            raise ValueError("runs of a model that is not among them")
        if len({(run.model, run.seed) for run in self.runs}) < len(self.runs):
            raise ValueError("two runs of one model and seed")
        return self


def read_record(path: Path, kind: type[Record]) -> dict[str, Any] | None:
    """Read the record of a run; None if there is none, or it is damaged or of another run."""
    try:
        record = read_json(path, MAX_BYTES)
        kind.model_validate(record)
    except (InputError, ValidationError):
        return None
    model, _, number = path.parent.name.rpartition("-")
    is_its = record["model"] == model and (kind is TrialRecord or str(record["seed"]) == number)
    return record if is_its else None


def read_results(out: Path) -> dict[str, Any]:
    file = out / "results.json"
    if not file.exists():
        raise InputError(f"{file}: no such file; give an experiment's folder, or --resume it first")
    tree = read_json(file, MAX_BYTES)
    try:
        _Results.model_validate(tree)
    except ValidationError:
        raise InputError(f"{file}: not an experiment's results; give another folder") from None
    return {"curves": {}, "trials": {}} | tree
