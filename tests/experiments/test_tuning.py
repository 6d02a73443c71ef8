import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers.experiments import RUNNING_SUM, SHORT, raw_results, tuned
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments import runs
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.tuning import (
    APART,
    PUBLISHED,
    RATES,
    best,
    read_trials,
    report_trials,
    settings,
    trials,
)
from mlx_gateloop.experiments.variants import VARIANTS, title
from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.loop import Diverged
from mlx_gateloop.train.setup import make_model

pytestmark = pytest.mark.usefixtures("without_pictures")


WITHOUT_HALF_LIVES = ("linear_attention", "retnet", "none", None)


def test_settings_are_the_same_for_all_models_but_for_what_a_model_lacks():
    for number in range(24):
        found = {model: settings(RUNNING_SUM, model, number) for model in VARIANTS}
        longest = {model: s.pop("model.longest_half_life", None) for model, s in found.items()}
        heads = {model: s.pop("model.num_heads", None) for model, s in found.items()}
        scaled = {model for model, s in found.items() if s.pop("model.input_scale", False)}
        assert len({str(values) for values in found.values()}) == 1
        for model, variant in VARIANTS.items():
            transition = variant.get("transition")
            has_none = transition in WITHOUT_HALF_LIVES or model == "published_start"
            assert longest[model] == (None if has_none else longest["fixed"])
            assert heads[model] == (heads["softmax"] if "num_heads" in variant else None)
            spreads = transition in ("data_controlled", "fixed")
            assert (model in scaled) == (spreads and longest[model] is not None)


def test_settings_cover_their_ranges_evenly():
    """A Sobol set has a point in each eighth of every factor, and in each quarter of two."""
    found = [settings(RUNNING_SUM, "fixed", number) for number in range(32)]
    rate = np.array([s["optimizer.learning_rate"] for s in found])
    ratio = np.array([s["optimizer.state_transition_learning_rate"] for s in found]) / rate
    longest = np.array([s.get("model.longest_half_life", 0) for s in found])
    low, high = 0.01 / RATES, 0.01 * RATES  # the preset's is 0.01
    shares = [np.log(rate / low) / np.log(high / low), np.log(ratio / 0.03) / np.log(10 / 0.03)]
    for share in shares:
        assert np.bincount((8 * share).astype(int)).tolist() == [4] * 8
    cells = (4 * shares[0]).astype(int) * 4 + (4 * shares[1]).astype(int)
    assert np.bincount(cells, minlength=16).tolist() == [2] * 16
    assert (longest == 0).sum() == pytest.approx(32 * PUBLISHED, abs=1)
    assert 2 <= longest[longest > 0].min() < 3
    assert 40 < longest.max() <= 64
    more = [settings(RUNNING_SUM, "fixed", number) for number in range(40)]
    assert more[:32] == found, "more trials keep the first ones"


def test_a_chosen_value_near_an_end_of_its_range_is_named():
    experiment, number = replace(RUNNING_SUM, models=("fixed",), trials=64), 0
    for number in range(64):
        record = {"settings": settings(experiment, "fixed", number), "validation_loss": 1.0}
        (*_, table) = report_trials(experiment, {"fixed": [record | {"steps": 1}]})
        named = table.splitlines()[-1].split("|")[-2]
        rate = record["settings"]["optimizer.learning_rate"]
        assert ("learning_rate" in named) == (not 0.01 / 5**0.8 < rate < 0.01 * 5**0.8)
        longest = record["settings"].get("model.longest_half_life")
        is_at_an_end = longest is not None and not 2 * 32**0.1 < longest < 2 * 32**0.9
        assert ("longest_half_life" in named) == is_at_an_end


@pytest.mark.parametrize("rate", ["abc", None])
def test_a_rate_that_is_no_number(tmp_path, rate):
    broken = RUNNING_SUM.changed_by(SHORT | {"optimizer.learning_rate": rate}, trials=2)
    with pytest.raises(InputError, match=r"^optimizer\.learning_rate: expected a number to tune"):
        run_experiment(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_model_takes_every_setting():
    task = RUNNING_SUM.make_task()
    for model in VARIANTS:
        for number in range(4):
            chosen = settings(RUNNING_SUM, model, number)
            args = RUNNING_SUM.config(task, model, 0, chosen).model_args(6)
            expected = VARIANTS[model] | {
                key.removeprefix("model."): value
                for key, value in chosen.items()
                if key.startswith("model.")
            }
            assert {key: getattr(args, key) for key in expected} == expected


def test_the_best_trial_decides_and_budgets_are_equal(tmp_path):
    experiment = tuned(models=["data_controlled", "fixed", "lru"])
    run_experiment(experiment, tmp_path / "out")
    steps = {}
    for model in experiment.models:
        mine = [t for t in trials(experiment, tmp_path / "out") if t.model == model]
        records = [json.loads(trial.record.read_text()) for trial in mine]
        assert [record["settings"] for record in records] == [
            settings(experiment, model, number) for number in range(3)
        ]
        assert raw_results(tmp_path / "out")["trials"][model] == records
        steps[model] = [record["steps"] for record in records]
        lowest = min(records, key=lambda record: record["validation_loss"])
        assert best(experiment, tmp_path / "out", model) == lowest["settings"]
        config = (tmp_path / "out" / "runs" / f"{model}-0" / "config.yaml").read_text()
        rate = lowest["settings"]["optimizer.learning_rate"]
        assert f"  learning_rate: {rate}\n" in config
    assert list(steps.values()) == [[4, 4, 4]] * 3
    text = (tmp_path / "out" / "results.md").read_text()
    assert "## Tuning" in text
    assert text.count("| 3      | 12") == 3


def test_the_state_of_the_report_is_that_of_the_chosen_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.experiments.tuning.COUNTS", (1,))  # the variant has 4
    experiment = tuned(models=["data_controlled", "retnet"])
    run_experiment(experiment, tmp_path / "out")
    width = experiment.train["model.hidden_size"]
    text = (tmp_path / "out" / "results.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| RetNet "))
    assert int(row.split("|")[3].replace(",", "")) == width**2


def test_trials_see_no_test_samples_and_no_samples_of_the_runs(tmp_path, monkeypatch):
    seen = []
    original = runs.train

    def train(config, task, directory, resume):
        seen.append((directory.parent.name, task))
        return original(config, task, directory, resume=resume)

    monkeypatch.setattr(runs, "train", train)
    experiment = tuned(models=["fixed"], trials=1, seeds=2, draws=2)
    run_experiment(experiment, tmp_path / "out")
    assert [kind for kind, _ in seen] == ["trials", "runs", "runs"]
    (_, trial), *others = seen
    assert len(trial.test) == 0
    assert all(len(task.test) == 8 for _, task in others)
    assert trial.training.inputs.tolist() == experiment.make_task(APART).training.inputs.tolist()
    drawn = {task.sha256 for _, task in seen}
    assert len(drawn) == 3


def diverging(monkeypatch, *names):
    """Let the runs of some directories diverge after their last step, with a finite loss before."""
    original = runs.train

    def train(config, task, directory, resume):
        result = original(config, task, directory, resume=resume)
        if directory.name in names:
            raise Diverged("the validation loss is not finite")
        return result

    monkeypatch.setattr(runs, "train", train)


def test_a_trial_that_diverges_is_counted_and_never_chosen(tmp_path, monkeypatch):
    experiment, out = tuned(models=["fixed"], trials=2), tmp_path / "out"
    run_experiment(experiment, tmp_path / "straight")
    lower = best(experiment, tmp_path / "straight", "fixed")
    number = [settings(experiment, "fixed", n) for n in range(2)].index(lower)
    diverging(monkeypatch, f"fixed-{number}")
    run_experiment(experiment, out)
    assert best(experiment, out, "fixed") == settings(experiment, "fixed", 1 - number)
    (*_, table) = report_trials(experiment, {"fixed": read_trials(experiment, out, "fixed")})
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert (cells[1], cells[3]) == ("2", "1")


def test_a_run_that_diverges_is_finished_and_named(tmp_path, monkeypatch):
    out = tmp_path / "out"
    diverging(monkeypatch, "fixed-0")
    run_experiment(tuned(trials=0), out)
    records = [json.loads(file.read_text()) for file in out.glob("runs/*/test.json")]
    assert {r["model"]: (r["finished"], r["diverged"]) for r in records} == {
        "data_controlled": (True, False),
        "fixed": (True, True),
    }
    line = "Diverged, and tested with the best weights before that: fixed-0."
    assert line in (out / "results.md").read_text()


@pytest.mark.slow
def test_interrupted_trials_go_on_and_end_as_undisturbed_ones(tmp_path, monkeypatch):
    from helpers.training import press_ctrl_c, same_arrays

    from mlx_gateloop.data.task import SampleBatches
    from mlx_gateloop.train import Interrupted

    run_experiment(tuned(), tmp_path / "straight")
    out = tmp_path / "parts"
    for number in (7, 12):  # in a trial, and in the last step of one
        with monkeypatch.context() as patch:
            press_ctrl_c(patch, SampleBatches, number)
            with pytest.raises(Interrupted, match="continue with the same command"):
                run_experiment(tuned(), out, resume=out.exists())
    run_experiment(tuned(), out, resume=True)
    files = sorted(path.relative_to(out) for path in out.rglob("last.safetensors"))
    assert len(files) == 8  # three trials and a run for each of two models
    for file in files:
        same_arrays(out / file, tmp_path / "straight" / file)
    with pytest.raises(InputError, match="differs in trials: it had 3, now it is 4"):
        run_experiment(tuned(trials=4), out, resume=True)


@pytest.mark.slow
def test_records_come_back_from_the_report_where_folders_were_removed(tmp_path):
    """Nothing is trained again, and the report is the same but for the pictures of weights."""
    from helpers.experiments import results

    experiment, out = tuned(), tmp_path / "out"
    run_experiment(experiment, out)
    before = raw_results(out)
    curves, runs, tried = before["curves"], results(out), before["trials"]
    for folder in ("trials", "runs"):
        shutil.rmtree(out / folder)
    run_experiment(experiment, out, resume=True)
    after = raw_results(out)
    assert (after["curves"], results(out), after["trials"]) == (curves, runs, tried)
    assert not list(out.rglob("model.safetensors"))


def test_the_rate_of_transitions_is_listed_where_they_have_parameters():
    task = RUNNING_SUM.make_task()
    rate = "optimizer.state_transition_learning_rate"
    for model in VARIANTS:
        trial = settings(RUNNING_SUM, model, 0)
        made = make_model(RUNNING_SUM.config(task, model, 0, trial), 6)
        weights = tree_flatten(made.trainable_parameters())
        learned = any(is_state_transition(name) for name, _ in weights)
        chosen = replace(RUNNING_SUM, models=[model], settings={model: trial})
        (*_, table) = report_trials(chosen, {})
        assert (rate.split(".")[1] in table) == learned, model
        assert table.splitlines()[-1].split("|")[1].strip() == title(model)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.state_transition_learning_rate", "--tune tries values of it; leave it out"),
        ("model.longest_half_life", "--tune tries values of it; leave it out"),
        ("model.input_scale", "--tune tries values of it; leave it out"),
        ("model.num_heads", "--tune tries values of it; leave it out"),
        ("patience", "budgets of --tune are equal; leave it out"),
    ],
)
def test_what_tuning_decides_cannot_be_set(setting, message):
    RUNNING_SUM.changed_by({setting: 2}, models=["fixed"])
    with pytest.raises(InputError, match=f"--set {setting}: {message}"):
        RUNNING_SUM.changed_by({setting: 2}, models=["fixed"], trials=2)
