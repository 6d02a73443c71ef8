"""This process's share of a machine's processors."""

import os
from pathlib import Path

from mlx_gateloop import _blas


def pin_cpus(index: int, count: int) -> None:
    """Pin this process and its threads to one of `count` shares of the processors (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        every = sorted(os.sched_getaffinity(0))
        share = every[index * len(every) // count : (index + 1) * len(every) // count]
        share = share or [every[index % len(every)]]
        for thread in Path("/proc/self/task").iterdir():  # the BLAS has threads already
            os.sched_setaffinity(int(thread.name), share)
        _blas.limit_threads(len(share))
