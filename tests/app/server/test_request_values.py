"""Values from pages and programs."""

import pytest
from helpers.errors import refusal
from mlx_gateloop.app.server import request_values

from mlx_gateloop.generate import Sampling


def test_what_javascript_sends_is_understood():
    sampling = request_values.sampling(temperature=1, top_p=0.5, top_k=40.0, min_p=0, seed=7.0)
    assert sampling == Sampling(1, 0.5, 40, 0, seed=7)
    assert isinstance(sampling.top_k, int)
    assert request_values.sampling(seed=None) == request_values.sampling(seed=-1) == Sampling()
    assert request_values.sampling(seed=2**64 - 1).seed == 2**64 - 1  # exactly


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_a_wrong_value_is_named(name):
    for value in ("1", None, True, [], float("nan"), float("inf"), -(10**400)):
        line = refusal(request_values.sampling, **{name: value})
        assert line.startswith(f"{name}: expected a number, got ")
    assert refusal(request_values.sampling, seed=-2).startswith("seed: expected a number in ")
    assert refusal(request_values.sampling, top_k=1.5) == "top_k: expected an integer, got 1.5"
