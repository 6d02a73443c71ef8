"""Cases of a test; all after the first `count` are slow: only `make test-all` runs them."""

import pytest


def first(count, cases):
    every = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*c, marks=[pytest.mark.slow] * (n >= count)) for n, c in enumerate(every)]
