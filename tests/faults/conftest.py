import pytest
from faults.nursery import Commands
from helpers.disk import small_disk  # noqa: F401


@pytest.fixture(scope="module")
def nursery():
    nursery = Commands()
    yield nursery
    nursery.close()
