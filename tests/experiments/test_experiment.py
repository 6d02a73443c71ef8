from dataclasses import replace

import pytest

from mlx_gateloop.bench.measure import peak_bytes
from mlx_gateloop.experiments.experiment import equal_parameters
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.train.setup import num_parameters

ARGS = ModelArgs(vocab_size=7, hidden_size=8, intermediate_size=12, num_hidden_layers=2)


def count(args):
    return num_parameters(Model(args))


FEWEST = count(replace(ARGS, intermediate_size=1))


@pytest.mark.parametrize("goal", [FEWEST, FEWEST + 20, 1000, 1017, 5000, 123_456])
def test_no_other_width_is_closer(goal):
    width = equal_parameters(ARGS, goal).intermediate_size
    near = range(max(1, width - 1), width + 2)
    distances = {n: abs(count(replace(ARGS, intermediate_size=n)) - goal) for n in near}
    assert distances[width] == min(distances.values())


def test_counting_takes_no_memory():
    assert peak_bytes(lambda: equal_parameters(ModelArgs(), 114_000_000)) < 1 << 20
