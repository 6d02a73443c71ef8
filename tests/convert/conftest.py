"""A PyTorch checkpoint, and where its conversion goes."""

import pytest
from helpers.checkpoints import torch, torch_model

torch.set_num_threads(1)  # on a busy machine tiny operations wait 10 ms for a second thread


@pytest.fixture
def state():
    return torch_model().state_dict()


@pytest.fixture
def source(tmp_path, state):
    folder = tmp_path / "wéights of ☃"
    folder.mkdir()
    torch.save(state, folder / "weights.pt")
    return folder / "weights.pt"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "öut"
