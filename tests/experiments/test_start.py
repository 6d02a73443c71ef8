"""benchmarks/start.py: each start changes the part that it names, and nothing else."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from helpers.scripts import load_script
from mlx.utils import tree_flatten

from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.model import gates
from mlx_gateloop.train.setup import make_model

start = load_script("benchmarks/start.py")
MIXING = "model.layers.0.time_mixing."
CHANGED = {
    "half-lives of 1 token": {"gamma_proj.bias"},
    "phases of 0": {"theta_proj.bias"},
    "the text's part of gates not smaller": {"gamma_proj.weight", "theta_proj.weight"},
    "input scaled at the start only": {"v_proj.weight"},
    "transitions at the base rate": set(),
}


def weights_and_config(name):
    settings, constants = start.starts(0.03)[name]
    experiment = PRESETS["text"]["small"].changed_by({"task.file": "python-source"})
    chosen = {"start": "spread", "optimizer.learning_rate": 0.03} | settings
    task = experiment.make_task()
    config = experiment.config(task, "data_controlled", 0, chosen)
    with patch.dict(vars(gates), constants):
        weights = tree_flatten(make_model(config, 256).parameters(), destination={})
    mine = {n.removeprefix(MIXING): np.array(w) for n, w in weights.items() if MIXING in n}
    return mine, config


def test_each_start_changes_one_part():
    whole, spread = weights_and_config(start.WHOLE)
    assert spread.optimizer.state_transition_learning_rate == pytest.approx(0.003)
    for name, changed in CHANGED.items():
        weights, config = weights_and_config(name)
        assert {n for n in weights if not np.array_equal(weights[n], whole[n])} == changed, name
        rate = 0.03 if name == "transitions at the base rate" else 0.003
        assert config.optimizer.state_transition_learning_rate == pytest.approx(rate)
    for name in start.starts(0.03).keys() - CHANGED.keys() - {start.WHOLE}:
        weights, config = weights_and_config(name)
        assert config.start == "published"
        assert not weights["gamma_proj.bias"].any()


def test_runs_that_were_made_are_not_repeated(tmp_path, monkeypatch, capsys):
    bits = {name: {"0": 1.5, "1": 1.6} for name in start.starts(0.03)}
    bits["phases of 0"] = {"0": 1.6, "1": 1.8}
    (tmp_path / "bits.json").write_text(json.dumps(bits))
    monkeypatch.setattr("sys.argv", ["start.py", "--out", str(tmp_path), "--seeds", "2"])
    start.main()
    (row,) = (r for r in capsys.readouterr().out.splitlines() if r.startswith("| phases of 0"))
    assert row.split("|")[2].strip() == "1.700 ± 0.141"
    assert row.split("|")[3].strip().startswith("+0.150 (95%: ")
