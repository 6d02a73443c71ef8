"""Waiting for what another thread or process does."""

import time

PATIENCE = 120  # seconds; a busy machine may need many of them


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
