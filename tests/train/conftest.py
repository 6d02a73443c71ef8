import contextlib
import os
import subprocess
import sys

import pytest
from helpers.training import TEXT


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT[:6000], encoding="utf-8")
    return path


@pytest.fixture
def without_pictures(monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)


@pytest.fixture
def small_disk(tmp_path):
    """A directory with a file system of 1 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount")
    yield folder
    # MLX's threads close a file a moment after its arrays are there, until then it is busy
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk, free):
    """Fill a disk up to some KB with a file, and return that."""
    filling = disk / "others"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    os.truncate(filling, filling.stat().st_size - free * 1024)
    return filling
