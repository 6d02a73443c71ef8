"""The examples of public docstrings run."""

import doctest
import sys

import pytest

import mlx_gateloop as gl
from mlx_gateloop import ops

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (gl, gl.watch, ops)
    for name in module.__all__
    if name != "watch"
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name):
    thing = PUBLIC[name]
    assert "\n    Examples:\n" in thing.__doc__
    module = sys.modules[thing.__module__]
    examples = doctest.DocTestFinder(recurse=False).find(thing, name, globs=dict(vars(module)))
    for example in examples:
        assert doctest.DocTestRunner().run(example).failed == 0
