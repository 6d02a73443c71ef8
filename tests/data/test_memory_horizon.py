import numpy as np
import pytest
from helpers.errors import refusal
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.data.memory_horizon import FUNCTIONS, answers, memory_horizon


def alternating_products(numbers):
    """The paper's words: pairs from opposite ends, added and subtracted in turn."""
    total, sign = 0, 1
    while len(numbers) > 1:
        total += sign * numbers[0] * numbers[-1]
        numbers, sign = numbers[1:-1], -sign
    return total + sign * sum(numbers)


def naive(inputs, reset, modulus, function):
    compute = sum if function == "running_sum" else alternating_products
    targets, spans = [], []
    for row in inputs:
        numbers = []
        for token in row:
            numbers = [] if token == reset else [*numbers, int(token)]
            targets.append(compute(numbers) % modulus)
            spans.append(len(numbers))
    return np.reshape(targets, inputs.shape), np.reshape(spans, inputs.shape)


@given(st.data())
def test_equals_the_definition(data):
    count, length = data.draw(st.tuples(st.integers(0, 4), st.integers(1, 40)))
    largest, modulus = data.draw(st.tuples(st.integers(0, 200), st.integers(1, 60)))
    function = data.draw(st.sampled_from(sorted(FUNCTIONS)))
    share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs = generator.integers(0, largest + 1, (count, length))
    inputs[generator.random(inputs.shape) < share] = largest + 1
    targets, span = answers(inputs, largest + 1, modulus, function)
    expected, expected_span = naive(inputs, largest + 1, modulus, function)
    np.testing.assert_array_equal(targets, expected)
    np.testing.assert_array_equal(span, expected_span)


def test_the_papers_parameters_are_the_defaults():
    task = memory_horizon(samples=6, held_out=3)
    assert (task.vocab_size, task.num_outputs, task.marker) == (6, 51, 5)
    assert task.training.inputs.shape == (6, 1024)
    for samples in (task.training, task.validation, task.test):
        assert ((samples.inputs == 5).sum(1) == 3).all()
        assert set(np.unique(samples.inputs)) == {0, 1, 2, 3, 4, 5}
        assert samples.asked.all()
        expected, _ = naive(samples.inputs[:1], 5, 51, "alternating_products")
        np.testing.assert_array_equal(samples.targets[:1], expected)
    assert (task.validation.inputs != task.test.inputs).any()


def test_resets_are_as_likely_everywhere():
    inputs = memory_horizon(length=8, resets=3, samples=8000, held_out=1).training.inputs
    np.testing.assert_allclose((inputs == 5).mean(0), 3 / 8, atol=0.025)
    for resets in (0, 5):
        samples = memory_horizon(length=5, resets=resets, samples=4, held_out=1).training
        assert ((samples.inputs == 5).sum(1) == resets).all()


def test_resets_may_be_unasked():
    settings = {"length": 32, "samples": 5, "held_out": 2}
    scored = memory_horizon(**settings).training
    unasked = memory_horizon(**settings, at_resets="unasked").training
    np.testing.assert_array_equal(unasked.inputs, scored.inputs)
    np.testing.assert_array_equal(unasked.asked, scored.inputs != 5)
    np.testing.assert_array_equal(unasked.targets[unasked.asked], scored.targets[unasked.asked])


def test_a_seed_decides_everything():
    changes = ({}, {"seed": 0}, {"seed": 1}, {"function": "running_sum"})
    tasks = [memory_horizon(length=32, samples=5, held_out=2, **change) for change in changes]
    one, same, *others = (task.sha256 for task in tasks)
    assert one == same
    assert len({one, *others}) == 3


@pytest.mark.parametrize(("settings", "words"), [
    ({"length": 4, "resets": 5}, "task.resets must lie in 0 to task.length 4, got 5"),
    ({"at_resets": "none"}, "task.at_resets: expected zero or unasked, got 'none'"),
])  # fmt: skip
def test_impossible_parameters(settings, words):
    assert refusal(memory_horizon, **settings) == words
