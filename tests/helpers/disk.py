"""A disk without room."""

import contextlib
import os
from pathlib import Path


def fill(disk: Path, free: int) -> Path:
    """Fill a disk up to some KB with a file, and return that."""
    filling = disk / "others"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    os.truncate(filling, filling.stat().st_size - free * 1024)
    return filling
