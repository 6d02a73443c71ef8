"""Some changed files for every reader, always the same.

`make fuzz` tries others; it keeps the last one that failed in build/fuzz.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.attempts import Attempts
from fuzz.targets import TARGETS

EXAMPLES, KEPT = int(os.environ.get("EXAMPLES", "0")), Path("build/fuzz")


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_is_read_or_refused_in_one_line(name):
    attempts = Attempts(TARGETS[name])

    @settings(
        max_examples=EXAMPLES or 8,
        derandomize=not EXAMPLES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def check(chance):
        data = attempts.changed(chance)
        if EXAMPLES:  # hypothesis runs the smallest one that fails last
            KEPT.mkdir(parents=True, exist_ok=True)
            (KEPT / name).write_bytes(data)
        attempts(data)

    with attempts.place:
        check()
