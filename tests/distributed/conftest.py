"""Ranks on this machine, and a tiny run."""

import json
import pydoc_data.topics
from pathlib import Path

import pytest
from distributed.nursery import Ranks

TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32},
    "tokenizer": {"kind": "bytes"},
    "data": {"length": 32, "batch_size": 6},
    "optimizer": {"learning_rate": 1e-3},
    "steps": 20,
    "log_every": 1,
    "eval_every": 10,
    "checkpoint_every": 5,
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Ranks(tmp_path_factory.mktemp("ranks"))
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The words of a command that trains for a second or two."""
    place: Path = tmp_path_factory.mktemp("run")
    (place / "run.yaml").write_text(json.dumps(TINY))
    (place / "text.txt").write_text("".join(pydoc_data.topics.topics.values())[:8000])
    return ["train", "--config", place / "run.yaml", "--data", place / "text.txt", "--out"]
