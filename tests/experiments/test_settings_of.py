"""Settings that the trials of another experiment chose."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.experiments import RUNNING_SUM, SHORT, raw_results, tuned

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.tuning import best, chosen_in

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.mark.slow
def test_settings_chosen_by_another_experiment(tmp_path):
    """Each model takes its own, from the trials or from an experiment that took them."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    run_experiment(tuned(), first)
    chosen = chosen_in(first, "memory-horizon")
    assert chosen == {model: best(tuned(), first, model) for model in tuned().models}
    longer = RUNNING_SUM.changed_by(SHORT | {"steps": 6}, seeds=1, draws=1, tuned=chosen)
    run_experiment(longer, second)
    assert not (second / "trials").exists()
    for model, values in chosen.items():
        config = longer.config(longer.make_task(), model, 0)
        rate = values["optimizer.learning_rate"]
        assert config.optimizer.learning_rate == rate
        assert (
            f"  learning_rate: {rate}\n"
            in (second / "runs" / f"{model}-0" / "config.yaml").read_text()
        )
    report = json.loads((second / "results.json").read_text())
    assert report["experiment"]["settings"] == chosen
    assert "another experiment's trials chose" in (second / "results.md").read_text()
    assert chosen_in(second, "memory-horizon") == chosen
    run_experiment(longer, second, resume=True)
    run_experiment(tuned(trials=0), third)
    with pytest.raises(InputError, match="an experiment without trials; give one made with --tune"):
        chosen_in(third, "memory-horizon")


def test_models_come_to_an_experiment_with_settings_of_another(tmp_path):
    given = {model: {"optimizer.learning_rate": 0.01} for model in ("fixed", "lru")}

    def longer(*models, **changes):
        return RUNNING_SUM.changed_by(SHORT, seeds=1, draws=1, models=models, tuned=given | changes)

    run_experiment(longer("fixed"), tmp_path)
    run_experiment(longer("lru"), tmp_path, resume=True)
    assert chosen_in(tmp_path, "memory-horizon") == given
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fixed-0", "lru-0"}
    other = {"optimizer.learning_rate": 0.02}
    with pytest.raises(InputError, match=r"to resume differs in settings\.fixed"):
        run_experiment(longer("fixed", fixed=other), tmp_path, resume=True)
    for models in (["fixed"], ["s5"]):
        untuned = RUNNING_SUM.changed_by(SHORT, seeds=1, draws=1, models=models)
        with pytest.raises(InputError, match="the experiment to resume differs in --settings-of"):
            run_experiment(untuned, tmp_path, resume=True)


@pytest.mark.parametrize("change", [{"finished": False}, {"diverged": True}, None])
def test_a_model_whose_trials_are_missing_or_failed_has_no_settings(tmp_path, change):
    run_experiment(tuned(models=["fixed", "lru"]), tmp_path)
    tree = raw_results(tmp_path)
    for trial in tree["trials"]["lru"]:
        trial.update(change or {})
    if change is None:
        tree["trials"]["lru"].pop()
    (tmp_path / "results.json").write_text(json.dumps(tree))
    assert chosen_in(tmp_path, "memory-horizon").keys() == {"fixed"}


@pytest.mark.parametrize("settings", [{"model.transition": "lru"}, {"model.num_heads": -1}])
def test_settings_that_no_tuning_chooses_are_refused(tmp_path, settings):
    run_experiment(tuned(models=["fixed"]), tmp_path)
    tree = raw_results(tmp_path)
    tree["experiment"] |= {"trials": 0, "settings": {"fixed": settings}}
    (tmp_path / "results.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match="not an experiment; choose another directory"):
        chosen_in(tmp_path, "memory-horizon")


def test_the_published_records_have_settings():
    published = Path(__file__).parents[2] / "benchmarks" / "results" / "experiments"
    if not published.exists():
        pytest.skip("benchmarks/ is not part of an installed package")
    assert len(chosen_in(published / "text-python", "text")) == 11
    for name, task in (("memory-horizon-bar", "memory-horizon"), ("recall", "recall")):
        records = [chosen_in(published / each, task) for each in (name, f"{name}-long")]
        assert records[1].items() <= records[0].items()
        assert len(records[1]) > 5


def test_settings_of_another_task_or_beside_ones_own(tmp_path):
    experiment = json.loads(json.dumps(asdict(RUNNING_SUM)))
    facts = {"environment": {}, "oracles": {}}
    tree = facts | {"experiment": experiment, "models": {}, "trials": {}, "runs": []}
    (tmp_path / "results.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match="an experiment of memory-horizon; give one of recall"):
        chosen_in(tmp_path, "recall")
    given = {"fixed": {"optimizer.learning_rate": 0.01}}
    with pytest.raises(
        InputError,
        match=r"^--set optimizer\.learning_rate: the other experiment chose it; leave it out$",
    ):
        RUNNING_SUM.changed_by({"optimizer.learning_rate": 0.5}, models=["fixed"], tuned=given)
    with pytest.raises(InputError, match=r"^models: the other .* has not chosen .* of lru; "):
        RUNNING_SUM.changed_by(SHORT, models=["lru"], tuned={"fixed": {}})
    with pytest.raises(InputError, match=r"^tune: another experiment's settings need no trials"):
        RUNNING_SUM.changed_by(SHORT, trials=2, tuned={"fixed": {}, "data_controlled": {}})
