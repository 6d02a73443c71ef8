"""The embedded models: each is loaded once."""

from functools import cache
from pathlib import Path

import mlx_gateloop as gl
from mlx_gateloop import app

MODELS = Path(app.__file__).parent / "embedded_models"


@cache
def load_embedded(name):
    return gl.load(MODELS / name)
