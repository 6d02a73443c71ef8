import pytest

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments import PRESETS
from mlx_gateloop.lm import PRESETS as MODELS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_possible_settings(name):
    for preset, experiment in PRESETS[name].items():
        assert (experiment.name, experiment.preset) == (name, preset)
        if preset not in ("paper", "author"):  # those take seconds to draw
            task = experiment.make_task()
            config = experiment.config(task, "fixed", seed=2)
            assert (config.seed, config.model["transition"]) == (2, "fixed")
            assert config.model["num_outputs"] == task.num_outputs


def test_paper_is_the_papers():
    paper = PRESETS["memory-horizon"]["paper"]
    assert paper.task == {}
    task = paper.changed_by({"task.samples": 2, "task.held_out": 1}).make_task()
    config = paper.config(task, "data_controlled", 0)
    assert config.model_args(task.vocab_size) == MODELS["memory_horizon"]
    assert config.total_steps(-(-2000 // 32)) == 18_900
    assert (config.data.batch_size, config.data.length) == (32, 1024)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.betas) == (0.0025, (0.9, 0.98))
    assert (optimizer.weight_decay, optimizer.warmup_steps) == (0.05, 10_000)


def test_settings_go_where_they_belong():
    bar = PRESETS["memory-horizon"]["bar"]
    changed = bar.changed_by({"task.length": 9, "epochs": 2, "seeds": 5, "model.gate": "real"})
    assert changed.task == bar.task | {"length": 9}
    assert (changed.train["epochs"], changed.train["model.gate"]) == (2, "real")
    assert "steps" not in changed.train
    assert (changed.seeds, bar.seeds) == (5, 3)
    assert bar.changed_by({"transitions": "fixed,x"}).transitions == ("fixed", "x")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seeds": 0}, "seeds: expected an integer >= 1, got 0"),
        ({"seeds": "two"}, "seeds: expected an integer >= 1, got 'two'"),
        ({"transitions": 2}, "transitions: expected names, got 2"),
        ({"seed": 3}, "--set seed: use --seeds"),
        ({"model.transition": "fixed"}, "use --transitions"),
        ({"data.length": 3}, "use task.length"),
        ({"task.lenght": 3}, "unknown key task.lenght; allowed: length"),
        ({"task.length": 2.5}, "task.length: expected an integer >= 1, got 2.5"),
        ({"task.length": True}, "got True"),
        ({"task.resets": -1}, "task.resets: expected an integer >= 0"),
        ({"task.function": 3}, "task.function: expected a name"),
        ({"task.function": "sum"}, "allowed: alternating_products, running_sum"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises(InputError, match=words):
        PRESETS["memory-horizon"]["bar"].changed_by(settings).make_task()
