import pytest
from faults.nursery import Commands


@pytest.fixture(scope="module")
def nursery():
    nursery = Commands()
    yield nursery
    nursery.close()
