"""Records of runs and of whole experiments, read back: what is damaged is recognised."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, FiniteFloat, Strict, ValidationError, model_validator

from mlx_gateloop.configuration import read_json
from mlx_gateloop.errors import InputError

MOST_BYTES = 2**28  # of results.json, which grows with models, seeds, trials and spans


class Record(BaseModel, strict=True):
    """The part that all runs have; fields with defaults are newer than the first records."""

    model: str
    seed: int
    finished: bool
    diverged: bool = False
    steps: int
    total_steps: int
    seconds: float


class TrialRecord(Record):
    """A trial's record."""

    settings: dict[str, Any]
    validation_loss: FiniteFloat | None


class Magnitudes(BaseModel, strict=True):
    """The result of `resets.mean_magnitudes`."""

    at_marker: list[list[float]]
    elsewhere: list[list[float]]
    resetting: list[int]


class Made(BaseModel, strict=True):
    """When, where and with what a run was made."""

    date: str
    CPU: str
    versions: str


class RunRecord(Record):
    """A run's record, with its result on the test samples."""

    made: Made | None = None
    parameters: int
    intermediate_size: int
    loss: float
    accuracy: float
    asked_by_span: list[int]
    right_by_span: list[int]
    magnitudes: Magnitudes | None


class _Experiment(BaseModel, strict=True):
    name: str


class _Results(BaseModel, strict=True):
    """The parts of results.json that are read."""

    experiment: _Experiment
    models: dict[str, dict[str, Any]]
    curves: dict[str, list[list[Annotated[tuple[int, float], Strict(False)]]]] = {}
    trials: dict[str, list[TrialRecord]] = {}
    runs: list[RunRecord]

    @model_validator(mode="after")
    def _has_every_model(self) -> "_Results":
        if {run.model for run in self.runs} - self.models.keys():
            raise ValueError("runs of a model that is not among them")
        return self


def read_record(path: Path, kind: type[Record]) -> dict[str, Any] | None:
    """Read the record of a run; None if there is none, or it is damaged or of another run."""
    try:
        record = read_json(path)
        kind.model_validate(record)
    except (InputError, ValidationError):
        return None
    model, _, number = path.parent.name.rpartition("-")
    is_its = record["model"] == model and (kind is TrialRecord or str(record["seed"]) == number)
    return record if is_its else None


def read_results(out: Path) -> dict[str, Any]:
    """Read the results.json of an experiment.

    Raises:
        InputError: There is none, or it is something else.
    """
    file = out / "results.json"
    if not file.exists():
        raise InputError(f"{file}: no such file; give an experiment's folder, or --resume it first")
    tree = read_json(file, MOST_BYTES)
    try:
        _Results.model_validate(tree)
    except ValidationError:
        raise InputError(f"{file}: not an experiment's results; give another folder") from None
    return tree
