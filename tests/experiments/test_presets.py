import json
import re
from dataclasses import replace

import pytest
from helpers.errors import refusal
from helpers.experiments import RUNNING_SUM

from mlx_gateloop.configuration import read_json
from mlx_gateloop.experiments.experiment import Experiment
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.model import lm
from mlx_gateloop.train.setup import num_parameters

RATE = {"optimizer.learning_rate": 0.5}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_possible_settings(name, tmp_path):
    (tmp_path / "text").write_bytes(b"abcd" * 2000)
    for preset, experiment in PRESETS[name].items():
        assert (experiment.name, experiment.preset) == (name, preset)
        if preset not in ("paper", "author"):  # those take seconds to draw
            if name == "text":
                experiment = experiment.changed_by({"task.file": str(tmp_path / "text")})
            task = experiment.make_task()
            config = experiment.config(task, "fixed", seed=2)
            assert (config.seed, config.model["transition"]) == (2, "fixed")
            assert config.model["num_outputs"] == task.num_outputs


def test_paper_is_the_papers():
    paper = PRESETS["memory-horizon"]["paper"]
    assert paper.task == {}
    task = paper.changed_by({"task.samples": 2, "task.held_out": 1}).make_task()
    config = paper.config(task, "data_controlled", 0)
    assert config.model_args(task.vocab_size) == lm.PRESETS["memory_horizon"]
    assert config.total_steps(-(-2000 // 32)) == 18_900
    assert (config.data.batch_size, config.data.length) == (32, 1024)
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.betas) == (0.0025, (0.9, 0.98))
    assert (optimizer.weight_decay, optimizer.warmup_steps) == (0.05, 10_000)


def test_settings_go_where_they_belong():
    changed = RUNNING_SUM.changed_by({"task.length": 9, "epochs": 2, "model.gate": "real"}, seeds=7)
    assert changed.task == RUNNING_SUM.task | {"length": 9}
    assert (changed.train["epochs"], changed.train["model.gate"]) == (2, "real")
    assert "steps" not in changed.train
    assert (changed.seeds, RUNNING_SUM.seeds, RUNNING_SUM.changed_by()) == (7, 5, RUNNING_SUM)
    assert changed.models == RUNNING_SUM.models == ("data_controlled", "fixed")
    assert RUNNING_SUM.changed_by(models=["fixed", "real_gates"]).models == ("fixed", "real_gates")
    both = RUNNING_SUM.changed_by({"start": "spread", "optimizer.name": "muon"})
    fixed, published = (both.config(both.make_task(), m, 0) for m in ("fixed", "published_start"))
    assert (fixed.start, published.start) == ("spread", "published")
    assert fixed.optimizer.weight_decay == 0  # MLX's Muon adds it to the gradient


@pytest.mark.parametrize(("arguments", "words"), [
    ({"seeds": 0}, "seeds: expected 1 to 1000, got 0"),
    ({"trials": -1}, "tune: expected 0 to 1000, got -1"),
    ({"models": ["fixed", "fixe"]}, "models: unknown 'fixe'; choose data_controlled, fixed"),
    ({"settings": {"seed": 3}}, "--set seed: use --seeds"),
    ({"settings": {"lora_rank": 2}}, "--set lora_rank: experiments train all weights"),
    ({"settings": {"model.transition": "fixed"}}, "--set model.transition: use --models"),
    ({"settings": {"data": {"length": 5}}}, "--set data: set its keys one by one"),
    ({"settings": {"data.packed": False}}, "--set data.packed: only for `gateloop train`"),
    ({"settings": {"tokenizer.path": "m"}}, "--set tokenizer.path: only for `gateloop train`"),
    ({"settings": {"model.vocab_size": 9}}, "--set model.vocab_size: the task decides"),
    ({"settings": {"task.lenght": 3}}, "unknown key task.lenght; allowed: length"),
    ({"settings": {"task.length": 2.5}}, "expected an integer from 1 to 1048576, got 2.5"),
    ({"settings": {"task.max_input": 2**31}}, "expected an integer from 0 to 1048576"),
    ({"settings": {"task.function": "sum"}}, "allowed: alternating_products, running_sum"),
    ({"settings": {"steps": 5, "epochs": 2}}, "--set steps and --set epochs: give one"),
    ({"settings": {"model.num_heads": 2}, "trials": 2}, "--tune decides it; leave it out"),
    ({"settings": {"start": "spread"}, "trials": 2}, "--set start: --tune decides it"),
    ({"settings": {"start": "spread"}, "models": ["lru"], "tuned": {"lru": RATE}}, "start: the"),
    ({"settings": {"weights": "m"}, "trials": 2}, "--set weights: trials and texts begin"),
    ({"settings": {"patience": 2}, "trials": 2}, "budgets of --tune are equal; leave it out"),
    ({"settings": RATE, "models": ["lru"], "tuned": {"lru": RATE}}, "rate: the other .* chose it;"),
    ({"models": ["lru"], "tuned": {"fixed": {}}}, "models: the other .* not chosen .* of lru;"),
    ({"trials": 2, "tuned": {}}, "^tune: another experiment's settings need no trials"),
    ({"settings": {"task.at_resets": "unasked", "task.resets": 64}}, "training .* no targets"),
])  # fmt: skip
def test_wrong_arguments(arguments, words):
    assert re.search(words, refusal(lambda: RUNNING_SUM.changed_by(**arguments).make_task()))


@pytest.mark.parametrize(("change", "words"), [
    ({"name": "chess"}, "not an experiment"),
    ({"task": {"length": "x"}}, r"task\.length: expected an integer"),
    ({"other": 5}, "not an experiment"),
])  # fmt: skip
def test_a_file_that_no_experiment_wrote(tmp_path, change, words):
    file = tmp_path / "experiment.json"
    RUNNING_SUM.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    line = refusal(Experiment.read, read_json(file), file)
    assert re.match(f"{re.escape(str(file))}: .*{words}", line)


def test_every_draw_has_other_samples_which_must_not_change():
    task = RUNNING_SUM.changed_by({"task.samples": 2, "task.held_out": 1})
    first, other = task.make_task().fingerprint, task.make_task(1).fingerprint
    assert task.changed_by({"task.seed": 1}).make_task().fingerprint == other != first
    known = replace(task, data=(first, "other"))
    assert known.make_task()
    assert "differs from the experiment's data" in refusal(known.make_task, 1)


def test_models_of_equal_parameters_have_another_inner_width():
    task = RUNNING_SUM.make_task()
    for is_equal in (True, False):
        experiment = RUNNING_SUM.changed_by(equal_parameters=is_equal)
        models = "data_controlled", "fixed", "real_gates"
        sizes = [experiment.config(task, m, 0).model_args(task.vocab_size) for m in models]
        widths = [args.intermediate_size for args in sizes]
        assert (widths == [32, 32, 32]) == (not is_equal)
        goal, *others = (num_parameters(lm.Model(args)) for args in sizes)
        near = pytest.approx([goal] * 2, abs=4 * (2 * 16 + 1) / 2)
        assert (widths[0], others == near) == (32, is_equal)
    bar = RUNNING_SUM.changed_by({"model.intermediate_size": 1})
    words = r"models: softmax_data_controlled has [\d,]+ parameters or more, the .*; leave it out,"
    assert re.match(words, refusal(bar.config, bar.make_task(), "softmax_data_controlled", 0))
