"""A kernel that gives way to plain MLX warns in each test anew; a warning is an error there."""

import pytest

from mlx_gateloop.ops import backends
from mlx_gateloop.ops.gpu import operator as gpu


@pytest.fixture(autouse=True)
def _no_warning_was_given():
    gpu._warn_once.cache_clear()
    backends._warn_once.cache_clear()
