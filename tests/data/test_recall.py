import numpy as np
from helpers.errors import refusal
from hypothesis import given
from hypothesis import strategies as st

from mlx_gateloop.data.recall import induction, recall, recalled
from mlx_gateloop.data.task import UNASKED


@given(st.lists(st.lists(st.integers(0, 4), min_size=12, max_size=12), max_size=3))
def test_recall_equals_a_search_backwards(rows):
    inputs = np.array(rows, np.int32).reshape(-1, 12)
    targets, span = recalled(inputs, 5)
    for row, answers, distances in zip(inputs, targets, span, strict=True):
        for now, token in enumerate(row):
            before = next((i for i in reversed(range(now)) if row[i] == token), None)
            assert answers[now] == (5 if before is None else row[before + 1])
            assert distances[now] == (0 if before is None else now - before + 1)


def test_the_authors_sizes_are_the_defaults_of_recall():
    task = recall()
    assert task.training.inputs.shape == (6000, 100)
    assert (task.vocab_size, task.num_outputs, task.marker) == (30, 31, None)
    assert task.training.asked.all()
    # each of the 99 earlier tokens is another one with probability 29 / 30
    new = (task.training.targets == 30).mean(0)
    np.testing.assert_allclose(new, (29 / 30) ** np.arange(100), atol=0.03)


def test_induction_asks_what_followed_the_marker():
    task = induction(length=9, tokens=4, samples=3000, held_out=10)
    inputs, targets = task.training.inputs, task.training.targets
    assert (task.vocab_size, task.num_outputs, task.marker) == (5, 4, 4)
    assert (targets[:, :-1] == UNASKED).all()
    assert task.training.asked.sum() == 3000
    for row, answer, span in zip(inputs, targets[:, -1], task.training.span[:, -1], strict=True):
        first, last = np.flatnonzero(row == 4)
        assert (last, answer, span) == (8, row[first + 1], 9 - first)
    shares = np.bincount(np.argmax(inputs == 4, 1), minlength=9) / 3000
    np.testing.assert_allclose(shares, [1 / 7] * 7 + [0, 0], atol=0.03)


def test_induction_needs_three_tokens():
    assert (induction(length=3, samples=2, held_out=1).training.span[:, -1] == 3).all()
    assert "task.length must be at least 3, got 2" in refusal(induction, length=2)
