"""Settings that the trials of another experiment chose."""

import json
from dataclasses import asdict

import pytest
from experiments.conftest import MODELS
from helpers.errors import refusal
from helpers.experiments import RUNNING_SUM, SHORT, raw_results

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.run import run_experiment
from mlx_gateloop.experiments.tuning import chosen_in

pytestmark = pytest.mark.usefixtures("without_pictures")


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


def test_only_settings_that_whole_trials_chose_are_taken(made, tmp_path):
    tree = raw_results(made)
    lru = tree["trials"]["lru"]

    def chosen(**changes):
        (tmp_path / "results.json").write_text(json.dumps(tree | changes))
        return chosen_in(tmp_path, "memory-horizon")

    assert chosen().keys() == {*MODELS}
    failed = (
        [trial | change for trial in lru] for change in ({"finished": False}, {"diverged": True})
    )
    for trials in (lru[:-1], *failed):
        assert chosen(trials=tree["trials"] | {"lru": trials}).keys() == {*MODELS} - {"lru"}
    for settings in ({"model.transition": "lru"}, {"model.num_heads": -1}):
        given = {"trials": 0, "settings": {"fixed": settings}}
        line = refusal(chosen, experiment=tree["experiment"] | given)
        assert "not an experiment; choose another directory" in line


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
