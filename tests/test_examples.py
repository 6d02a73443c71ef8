"""The examples of public docstrings run."""

import doctest
import sys

import pytest

import mlx_gateloop as gl
from mlx_gateloop import ops

MODULES = (gl, gl.watch, ops)
PUBLIC = {f"{m.__name__}.{name}": getattr(m, name) for m in MODULES for name in m.__all__}
del PUBLIC["mlx_gateloop.watch"]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name):
    thing = PUBLIC[name]
    assert "\n    Examples:\n" in thing.__doc__
    module = sys.modules[thing.__module__]
    for example in doctest.DocTestFinder(recurse=False).find(thing, name, globs=dict(vars(module))):
        assert doctest.DocTestRunner().run(example).failed == 0
