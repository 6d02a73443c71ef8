"""Ranks on this machine, and a tiny run."""

import json

import pytest
from distributed.nursery import Ranks
from helpers.training import TEXT, tiny_run


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Ranks(tmp_path_factory.mktemp("ranks"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The words of a command that trains for a second or two."""
    folder = tmp_path_factory.mktemp("run")
    sizes = {"model__dropout": 0.0, "data__batch_size": 6, "optimizer__learning_rate": 1e-3}
    config = tiny_run(**sizes, steps=20, log_every=1, eval_every=10, checkpoint_every=5)
    (folder / "run.yaml").write_text(json.dumps(config.to_dict()))
    (folder / "text.txt").write_text(TEXT[:8000])
    return ["train", "--config", folder / "run.yaml", "--data", folder / "text.txt", "--out"]
