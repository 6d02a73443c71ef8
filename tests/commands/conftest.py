"""Fixtures of the commands: a folder to work in, and a model in it."""

import pytest
from helpers.commands import TEXT
from helpers.models import save_tiny_model

TINY = """
model: {hidden_size: 16, num_hidden_layers: 1, intermediate_size: 16}
tokenizer: {kind: bytes}
data: {length: 16, batch_size: 2}
steps: 6
checkpoint_every: 3
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def model(work):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return save_tiny_model(work / "model", **sizes)
