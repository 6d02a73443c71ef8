import json
from dataclasses import replace

import numpy as np
import pytest
from experiments.conftest import MADE, MODELS
from helpers.errors import refusal
from helpers.experiments import RUNNING_SUM, SHORT, cells, raw_results, tuned
from mlx.utils import tree_flatten

from mlx_gateloop.experiments import runs, tuning
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.variants import VARIANTS, title
from mlx_gateloop.model.lm import is_state_transition
from mlx_gateloop.train.loop import Diverged
from mlx_gateloop.train.setup import make_model

pytestmark = pytest.mark.usefixtures("without_pictures")
WITHOUT_HALF_LIVES = ("linear_attention", "retnet", "none", None)


def test_settings_are_the_same_for_all_models_but_for_what_a_model_lacks():
    for number in range(24):
        found = {model: tuning.settings(RUNNING_SUM, model, number) for model in VARIANTS}
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
    found = [tuning.settings(RUNNING_SUM, "fixed", number) for number in range(32)]
    rate = np.array([s["optimizer.learning_rate"] for s in found])
    ratio = np.array([s["optimizer.state_transition_learning_rate"] for s in found]) / rate
    longest = np.array([s.get("model.longest_half_life", 0) for s in found])
    low, high = 0.01 / tuning.RATES, 0.01 * tuning.RATES  # the preset's is 0.01
    shares = [np.log(rate / low) / np.log(high / low), np.log(ratio / 0.03) / np.log(10 / 0.03)]
    for share in shares:
        assert np.bincount((8 * share).astype(int)).tolist() == [4] * 8
    cells = (4 * shares[0]).astype(int) * 4 + (4 * shares[1]).astype(int)
    assert np.bincount(cells, minlength=16).tolist() == [2] * 16
    assert (longest == 0).sum() == pytest.approx(32 * tuning.PUBLISHED, abs=1)
    assert 2 <= longest[longest > 0].min() < 3
    assert 40 < longest.max() <= 64
    more = [tuning.settings(RUNNING_SUM, "fixed", number) for number in range(40)]
    assert more[:32] == found, "more trials keep the first ones"


def test_a_chosen_value_near_an_end_of_its_range_is_named():
    experiment = replace(RUNNING_SUM, models=("fixed",), trials=64)
    for number in range(64):
        record = {"settings": tuning.settings(experiment, "fixed", number), "validation_loss": 1.0}
        record |= {"steps": 1, "finished": True}
        _, note, table = tuning.report_trials(experiment, {"fixed": [record]})
        assert "0.002 to 0.05" in note
        named = cells(table)[-1][-1]
        rate = record["settings"]["optimizer.learning_rate"]
        assert ("learning_rate" in named) == (not 0.01 / 5**0.8 < rate < 0.01 * 5**0.8)
        longest = record["settings"].get("model.longest_half_life")
        is_at_an_end = longest is not None and not 2 * 32**0.1 < longest < 2 * 32**0.9
        assert ("longest_half_life" in named) == is_at_an_end


@pytest.mark.parametrize("rate", ["abc", 0])
def test_a_rate_that_nothing_can_be_tuned_around(tmp_path, rate):
    broken = RUNNING_SUM.changed_by(SHORT | {"optimizer.learning_rate": rate}, trials=2)
    words = f"optimizer.learning_rate: expected a number above 0 to tune around, got {rate!r}"
    assert refusal(run_experiment, broken, tmp_path / "out") == words


def test_the_best_trial_decides_and_budgets_are_equal(made):
    for model in MODELS:
        mine = [trial for trial in tuning.trials(MADE, made) if trial.model == model]
        records = [json.loads(trial.record.read_text()) for trial in mine]
        assert [record["settings"] for record in records] == [
            tuning.settings(MADE, model, number) for number in range(3)
        ]
        assert raw_results(made)["trials"][model] == records
        assert [record["steps"] for record in records] == [4, 4, 4]
        lowest = min(records, key=lambda record: record["validation_loss"])
        assert tuning.best(MADE, made, model) == lowest["settings"]
        config = (made / "runs" / f"{model}-0" / "config.yaml").read_text()
        assert f"  learning_rate: {lowest['settings']['optimizer.learning_rate']}\n" in config
    text = (made / "results.md").read_text()
    assert "## Tuning" in text
    assert text.count("| 3      | 12") == 3


def test_the_state_of_the_report_is_that_of_the_chosen_heads(tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.experiments.tuning.COUNTS", (1,))  # the variant has 4
    experiment = tuned(models=["retnet"], trials=1)
    run_experiment(experiment, tmp_path / "out")
    width = experiment.train["model.hidden_size"]
    rows = cells((tmp_path / "out" / "results.md").read_text())
    assert f"{width**2:,}" == next(row for row in rows if row[0] == "RetNet")[2]


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
    apart = experiment.make_task(tuning.APART)
    assert trial.training.inputs.tolist() == apart.training.inputs.tolist()
    assert len({task.sha256 for _, task in seen}) == 3


def test_a_trial_that_diverges_is_counted_and_never_chosen(out):
    before = tuning.best(MADE, out, "fixed")
    number = [tuning.settings(MADE, "fixed", n) for n in range(3)].index(before)
    file = out / "trials" / f"fixed-{number}" / "trial.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"diverged": True}))
    records = tuning.read_trials(MADE, out, "fixed")
    left = [record for record in records if not record["diverged"]]
    lowest = min(left, key=lambda record: record["validation_loss"])
    assert tuning.best(MADE, out, "fixed") == lowest["settings"] != before
    running = {**records[0], "finished": False, "validation_loss": None}  # neither of the two
    experiment, made = replace(MADE, models=("fixed",)), {"fixed": [*records, running]}
    (*_, table) = tuning.report_trials(experiment, made)
    assert cells(table)[-1][1:4:2] == ["3", "1"]


def test_a_run_that_diverges_is_finished_and_named(tmp_path, monkeypatch):
    """After its last step, with a finite loss before."""
    original, out = runs.train, tmp_path / "out"

    def train(*arguments, **options):
        original(*arguments, **options)
        raise Diverged("the validation loss is not finite")

    monkeypatch.setattr(runs, "train", train)
    run_experiment(tuned(models=["fixed"], trials=1), out)
    records = [json.loads(file.read_text()) for file in out.glob("*/fixed-0/t*.json")]
    assert [(r["finished"], r["diverged"]) for r in records] == [(True, True)] * 2
    line = "Diverged, and tested with the best weights before that: fixed-0."
    assert line in (out / "results.md").read_text()


def test_the_rate_of_transitions_is_listed_where_they_have_parameters():
    task = RUNNING_SUM.make_task()
    for model in VARIANTS:
        trial = tuning.settings(RUNNING_SUM, model, 0)
        made = make_model(RUNNING_SUM.config(task, model, 0, trial), 6)
        weights = tree_flatten(made.trainable_parameters())
        learned = any(is_state_transition(name) for name, _ in weights)
        chosen = replace(RUNNING_SUM, models=[model], settings={model: trial})
        (*_, table) = tuning.report_trials(chosen, {})
        assert ("state_transition_learning_rate" in table) == learned, model
        assert cells(table)[-1][0] == title(model)


def test_models_come_to_an_experiment_with_settings_of_another(tmp_path):
    given = {model: {"optimizer.learning_rate": 0.01} for model in ("fixed", "lru")}
    given["fixed"] |= {"model.num_heads": 1, "model.input_scale": True}

    def longer(*models, **changes):
        return RUNNING_SUM.changed_by(SHORT, seeds=1, draws=1, models=models, tuned=given | changes)

    run_experiment(longer("fixed"), tmp_path)
    run_experiment(longer("lru"), tmp_path, resume=True)
    assert str(tuning.chosen_in(tmp_path, "memory-horizon")) == str(given)  # 1 is no True
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fixed-0", "lru-0"}
    other = {"optimizer.learning_rate": 0.02}
    line = refusal(run_experiment, longer("fixed", fixed=other), tmp_path, resume=True)
    assert "to resume differs in settings.fixed" in line
    for models in (["fixed"], ["s5"]):
        untuned = RUNNING_SUM.changed_by(SHORT, seeds=1, draws=1, models=models)
        line = refusal(run_experiment, untuned, tmp_path, resume=True)
        assert "the experiment to resume differs in --settings-of" in line


def test_only_settings_that_whole_trials_chose_are_taken(made, tmp_path):
    tree = raw_results(made)
    lru = tree["trials"]["lru"]

    def chosen(**changes):
        (tmp_path / "results.json").write_text(json.dumps(tree | changes))
        return tuning.chosen_in(tmp_path, "memory-horizon")

    assert chosen().keys() == {*MODELS}
    failed = ([t | change for t in lru] for change in ({"finished": False}, {"diverged": True}))
    for records in (lru[:-1], *failed):
        assert chosen(trials=tree["trials"] | {"lru": records}).keys() == {*MODELS} - {"lru"}
    for values in ({"model.transition": "lru"}, {"model.num_heads": -1}):
        given = {"trials": 0, "settings": {"fixed": values}}
        line = refusal(chosen, experiment=tree["experiment"] | given)
        assert "not an experiment; choose another directory" in line
    line = refusal(chosen, experiment=tree["experiment"] | {"trials": 0})
    assert "an experiment without trials; give one made with --tune" in line
    assert "of memory-horizon; give one of recall" in refusal(tuning.chosen_in, made, "recall")
