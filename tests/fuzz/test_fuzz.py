"""Some changed files for every reader, always the same; `make fuzz` tries others."""

import gc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.attempts import Attempts
from fuzz.targets import TARGETS


# Gradio leaves event loops to the garbage collector: here, and not in a later test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_is_read_or_refused_in_one_line(name):
    attempts = Attempts(TARGETS[name])

    @settings(
        max_examples=8, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.randoms(use_true_random=False))
    def check(chance):
        attempts(attempts.changed(chance))

    try:
        check()
    finally:
        attempts.close()
        gc.collect()
