import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_gateloop.train import TrainConfig

TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "dropout": 0.1},
    "tokenizer.kind": "bytes",
    "data.length": 32,
    "data.batch_size": 4,
    "optimizer.learning_rate": 1e-2,
    "steps": 12,
    "log_every": 2,
    "eval_every": 6,
    "checkpoint_every": 3,
}


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(pydoc_data.topics.topics.values())[:6000], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny() -> Callable[..., TrainConfig]:
    """A run of a second or two; `tiny(seed=1)` changes a key, with __ for the dot."""

    def config(**changes: Any) -> TrainConfig:
        dotted = {key.replace("__", "."): value for key, value in changes.items()}
        return TrainConfig.load(None, TINY | dotted)

    return config


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)
