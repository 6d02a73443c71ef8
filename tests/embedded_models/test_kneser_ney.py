"""The n-gram model."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.embedded_models.kneser_ney import KneserNey

VOCABULARY = 7


@pytest.fixture(scope="module")
def streams():
    """Tokens of a Markov chain: to learn from, and others."""
    chance = np.random.default_rng(0)
    table = chance.dirichlet(np.full(VOCABULARY - 1, 0.3), size=VOCABULARY)
    tokens = [0]
    for _ in range(999):
        tokens.append(int(chance.choice(VOCABULARY - 1, p=table[tokens[-1]])))
    return np.array(tokens[:700]), np.array(tokens[700:])


def by_definition(tokens, order, context, token):
    """Chen and Goodman's equations, one n-gram at a time."""
    grams = {n: Counter(zip(*(tokens[i:] for i in range(n)), strict=False)) for n in range(1, 7)}
    likely = 1 / VOCABULARY
    for n in range(1, order + 1):
        counts = grams[n]
        if n < order:  # the tokens that come before it
            preceding = Counter(gram[1:] for gram in grams[n + 1])
            counts = {gram: max(1, preceding[gram]) for gram in counts}
        n1, n2, n3, n4 = (max(1, sum(c == k for c in counts.values())) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        steps = {1: 1 - 2 * y * n2 / n1, 2: 2 - 3 * y * n3 / n2, 3: 3 - 4 * y * n4 / n3}
        discount = {k: min(max(step, 0), k) for k, step in steps.items()}
        before = tuple(context[len(context) - n + 1 :])
        following = {g[-1]: c for g, c in counts.items() if g[:-1] == before}
        total = sum(following.values())
        if len(before) < n - 1 or not total:
            break
        taken = sum(discount[min(c, 3)] for c in following.values())
        count = following.get(token, 0)
        own = count - discount[min(count, 3)] if count else 0
        likely = own / total + taken / total * likely
    return likely


def test_it_is_the_published_model(streams):
    learned, _ = streams
    tokens = learned.tolist()
    model = KneserNey(learned, 3, VOCABULARY)
    for context in ([], [2], [1, 2], [3, 1, 0], [VOCABULARY - 1, 2], tokens[-2:]):
        expected = [by_definition(tokens, 3, context, token) for token in range(VOCABULARY)]
        np.testing.assert_allclose(model.probabilities(context[-2:]), expected, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_bits_of_a_stream_are_those_of_its_tokens(streams, order):
    learned, other = streams
    model = KneserNey(learned, order, VOCABULARY)
    contexts = (other[max(0, i - order + 1) : i].tolist() for i in range(1, len(other)))
    likely = [model.probabilities(context) for context in contexts]
    np.testing.assert_allclose([p.sum() for p in likely], 1)
    expected = -sum(np.log2(p[token]) for p, token in zip(likely, other[1:], strict=True))
    assert model.bits(other) == pytest.approx(expected)
