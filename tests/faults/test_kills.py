"""Commands that are killed and go on; `make faults` kills each of them 54 times."""

import os

import pytest
from faults.kills import conversion, experiment, training


@pytest.mark.parametrize(
    ("command", "kills"),
    [(training, 3), (conversion, 2), pytest.param(experiment, 6, marks=pytest.mark.slow)],
)
def test_a_killed_command_loses_nothing(nursery, tmp_path, command, kills):
    kills = int(os.environ.get("KILLS", kills))
    assert command(nursery, tmp_path, kills) > 0, "the first kill leaves half a file"
