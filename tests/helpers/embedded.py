"""The embedded models: each is loaded once."""

from functools import cache

import mlx_gateloop as gl
from benchmarks.embedded_models.library import MODELS


@cache
def load_embedded(name):
    return gl.load(MODELS / name)
