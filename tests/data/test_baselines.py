from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.data import baselines
from mlx_gateloop.data.task import UNASKED, Samples


def samples(inputs, targets, span=None):
    arrays = (np.array(a, np.int32) for a in (inputs, targets, span or np.zeros_like(targets)))
    return Samples(*arrays)


TRAINING = samples([[0, 1, 0, 1], [1, 1, 0, 0]], [[2, 2, 2, 3], [0, 3, 3, UNASKED]])


def test_majority_counts_what_is_asked():
    # both 2 and 3 occur three times: the lower one is taken
    assert baselines.majority(TRAINING, samples([[0, 0, 0, 0]], [[2, 3, 2, UNASKED]])) == 2 / 3


def lookup(training, test, count):
    """The definition, with a counter for each context; of equally common answers the largest."""

    def asked(samples):
        for row, answers in zip(samples.inputs.tolist(), samples.targets.tolist(), strict=True):
            for n, answer in enumerate(answers):
                if answer != UNASKED:
                    yield tuple(([None] * count + row[: n + 1])[-count:]), answer

    seen, every = defaultdict(Counter), Counter()
    for context, answer in asked(training):
        seen[context][answer] += 1
        every[answer] += 1
    commonest = Counter({min(every, key=lambda answer: (-every[answer], answer)): 1})
    right = []
    for context, answer in asked(test):
        known = seen[context] or commonest
        right.append(max(known, key=lambda a: (known[a], a)) == answer)
    return np.mean(right)


@given(st.integers(0, 2**32), st.sampled_from([2, 3, 2**20]), st.integers(1, 7))
def test_last_inputs_equals_the_definition(seed, tokens, count):
    generator = np.random.default_rng(seed)

    def draw(rows):
        inputs = generator.choice([0, 1, tokens - 1], (rows, 6))
        return samples(inputs, generator.integers(UNASKED, 3, inputs.shape))

    training, test = draw(8), draw(4)
    if training.asked.any() and test.asked.any():
        expected = lookup(training, test, count)
        assert baselines.last_inputs(training, test, count) == pytest.approx(expected)


def test_exact_upto_a_span():
    test = samples([[0, 0, 0, 0]], [[5, 4, 4, 2]], [[1, 2, 3, 9]])
    assert [baselines.exact_upto(TRAINING, test, span) for span in range(4)] == [0.25, 0.5, 0.75, 1]
