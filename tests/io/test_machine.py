import os
import sys

import pytest

from mlx_gateloop import _blas
from mlx_gateloop.io.machine import pin_cpus


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins threads")
@pytest.mark.parametrize(
    ("count", "expected"), [(1, [{3, 5, 6}]), (2, [{3}, {5, 6}]), (5, [{3}, {3}, {6}, {5}, {6}])]
)
def test_shares_cover_the_processors(monkeypatch, count, expected):
    found = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 6}, raising=False)

    def pin(thread, share):
        if thread == os.getpid():  # the main thread
            found.append(set(share))

    monkeypatch.setattr(os, "sched_setaffinity", pin, raising=False)
    monkeypatch.setattr(_blas, "library", "")  # its threads stay as they are
    for index in range(count):
        pin_cpus(index, count)
    monkeypatch.setattr(sys, "platform", "darwin")
    pin_cpus(1, 2)  # there it does nothing
    assert found == expected
