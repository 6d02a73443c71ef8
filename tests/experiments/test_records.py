import json

import pytest
from helpers.errors import refusal
from helpers.records import run_record, trial_record
from helpers.scripts import ROOT

from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.records import RunRecord, TrialRecord, read_record, read_results


def written(record, folder):
    folder.mkdir(exist_ok=True)
    file = folder / "record.json"
    file.write_text(json.dumps(record))
    return file


@pytest.mark.parametrize(
    ("kind", "record"), [(RunRecord, run_record("fixed", 3)), (TrialRecord, trial_record("fixed"))]
)
def test_a_record_is_read_as_it_was_written(tmp_path, kind, record):
    file = written(record | {"newer": 1}, tmp_path / "fixed-3")
    assert read_record(file, kind) == record | {"newer": 1}


@pytest.mark.parametrize(("kind", "record"), [
    (RunRecord, {"finished": True}), (RunRecord, run_record("fixed", 3, loss=float("nan"))),
    (RunRecord, run_record("fixed", 3, right_by_span=[4, 0, 1])),
    (RunRecord, run_record("fixed", 3, right_by_span=[5, 0, 1, 0])),
    (RunRecord, run_record("fixed", 3, asked_by_span=[10**30] * 4)),
    (RunRecord, run_record("lru", 3)),  # another model
    (TrialRecord, run_record("fixed", 3)),  # without settings
    (TrialRecord, trial_record("fixed", settings={"model.num_heads": 4})),
    (TrialRecord, trial_record("fixed", settings={"optimizer.learning_rate": "high"})),
])  # fmt: skip
def test_a_damaged_record_is_none(tmp_path, kind, record):
    assert read_record(written(record, tmp_path / "fixed-3"), kind) is None


RESULTS = {
    "experiment": {"name": "recall"}, "environment": {"date": "today"},
    "oracles": {"the commonest answer": 0.25}, "curves": {},
    "models": {"fixed": {"state_size": 16}},
    "trials": {"fixed": [trial_record("fixed")]}, "runs": [run_record("fixed", 0)],
}  # fmt: skip


def test_the_results_of_an_experiment(tmp_path):
    file = tmp_path / "results.json"
    line = refusal(read_results, tmp_path)
    assert "results.json: no such file; give an experiment's folder, or" in line
    file.write_text(json.dumps(RESULTS))
    assert read_results(tmp_path) == RESULTS
    earlier = {key: value for key, value in RESULTS.items() if key not in ("curves", "trials")}
    file.write_text(json.dumps(earlier))
    assert read_results(tmp_path) == earlier | {"curves": {}, "trials": {}}


@pytest.mark.parametrize("damage", [
    {"experiment": {}}, {"models": {"fixed": {}}}, {"models": {}}, {"runs": [{"finished": True}]},
    {"runs": [run_record("fixed", 0), run_record("fixed", 0)]},
    {"runs": [run_record("lru", 0)]},  # it is not among the models
    {"trials": {"fixed": [{}]}},
])  # fmt: skip
def test_damaged_results(tmp_path, damage):
    (tmp_path / "results.json").write_text(json.dumps(RESULTS | damage))
    assert "not an experiment's results; give another folder" in refusal(read_results, tmp_path)


def test_the_published_results_are_read():
    files = [*(ROOT / "benchmarks/results/experiments").rglob("results.json")]
    assert len(files) > 10
    for file in files:
        tree = read_results(file.parent)
        assert tree["runs"] or tree["trials"]
        Experiment.read(tree["experiment"], file)
