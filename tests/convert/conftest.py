"""A PyTorch checkpoint, and where its conversion goes."""

import pytest
from helpers.checkpoints import torch_model


@pytest.fixture
def state():
    return torch_model().state_dict()


@pytest.fixture
def source(tmp_path, state):
    (tmp_path / "in").mkdir()
    import torch

    torch.save(state, tmp_path / "in" / "weights.pt")
    return tmp_path / "in" / "weights.pt"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"
