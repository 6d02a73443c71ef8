"""A disk that is small, and processes that are quick to start."""

import subprocess
import sys

import pytest
from faults.nursery import Commands


@pytest.fixture
def small_disk(tmp_path):
    """A directory with a file system of 1 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount")
    yield place
    # MLX's threads close a file a moment after its arrays are there, until then it is busy
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def nursery():
    nursery = Commands()
    yield nursery
    nursery.close()
