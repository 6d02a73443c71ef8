"""mlx-lm finds the model type by itself, in every way Python can be started."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
from helpers.interpreter import python

import mlx_gateloop
from mlx_gateloop import _register
from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import Block

HOOK = Path(__file__).parent.parent / "hook"


def hook():
    """The hook's module, as Python's start-up ran it."""
    return sys.modules["_mlx_gateloop_hook"]


def test_the_hook_is_there_from_the_start_and_imports_nothing():
    code = """
import sys
print(*(f.__name__ for f in sys.meta_path if getattr(f, "__name__", "") == "GateLoopFinder"))
print(*(m for m in sys.modules if m.split(".")[0] in ("mlx", "mlx_lm", "mlx_gateloop")))
"""
    assert python(code).split() == ["GateLoopFinder"]


def test_the_hook_imports_and_opens_nothing_but_itself():
    code = f"""
import sys
sys.path.insert(0, {str(HOOK)!r})
opened, before = [], set(sys.modules)
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
exec({(HOOK / "mlx_gateloop_hook.pth").read_text()!r})
print(*set(sys.modules) - before, *(file for file in opened if "_mlx_gateloop_hook" not in file))
"""
    assert python(code, "-S", "-B").split() == ["_mlx_gateloop_hook"]


def test_installing_twice_adds_one_finder(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setitem(sys.modules, "_mlx_gateloop_hook", None)  # a source tree
    _register.install()
    _register.install()
    assert sys.meta_path == [_register.MlxLmFinder]


def test_the_hook_of_an_installed_package_is_enough():
    before = list(sys.meta_path)
    assert before.count(hook().GateLoopFinder) == 1
    _register.install()
    assert sys.meta_path == before


def test_other_imports_pass_by():
    for finder in (_register.MlxLmFinder, hook().GateLoopFinder):
        assert finder.find_spec("mlx_lm.models.llama") is None


def test_the_alias_is_the_module_itself():
    from mlx_lm.utils import _get_classes

    from mlx_gateloop.model import lm

    assert importlib.import_module("mlx_lm.models.gateloop") is lm
    assert lm.__name__ == lm.__spec__.name == "mlx_gateloop.model.lm"
    assert _get_classes({"model_type": "gateloop"}) == (lm.Model, lm.ModelArgs)


def test_one_module_whichever_name_comes_first():
    code = """
import mlx_lm.models.gateloop as first, mlx_gateloop.model.lm as second
print(first is second, first.Model.__module__)
"""
    assert python(code).split() == ["True", "mlx_gateloop.model.lm"]


def test_awq_has_the_recipe_and_its_own_source():
    spec = _register.find_spec("mlx_lm.quant.awq", importlib.import_module("mlx_lm.quant").__path__)
    awq = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(awq)
    assert {"llama", "gateloop"} <= awq.AWQ_MODEL_CONFIGS.keys()
    assert "def awq_quantize" in spec.loader.get_source("mlx_lm.quant.awq")


def test_a_pth_without_its_module_is_silent():
    line = (HOOK / "mlx_gateloop_hook.pth").read_text()
    assert python(f"exec({line!r})\nprint('fine')", "-S") == "fine"


def test_a_hook_that_outlived_the_package_leaves_mlx_lm_alone(monkeypatch):
    finder = hook().GateLoopFinder
    monkeypatch.setitem(sys.modules, "mlx_gateloop", None)  # importing it fails
    monkeypatch.delattr(mlx_gateloop, "_register")
    monkeypatch.delitem(sys.modules, "mlx_gateloop._register")
    assert finder.find_spec("mlx_lm.quant.awq") is None


@pytest.mark.parametrize("name", ["mlx_lm.quant.awq", "mlx_lm.models.gateloop"])
def test_an_error_in_the_package_leaves_mlx_lm_alone(name, monkeypatch):
    def broken(*_):
        raise AttributeError("no such MLX")

    monkeypatch.setattr(_register, "find_spec", broken)
    with pytest.warns(UserWarning, match="mlx_gateloop is not registered .*: no such MLX"):
        assert hook().GateLoopFinder.find_spec(name) is None


def test_another_awq_keeps_working_without_the_recipe(monkeypatch):
    def gone(_):
        raise AttributeError("AWQ_MODEL_CONFIGS")

    monkeypatch.setattr(_register, "_add_awq_recipe", gone)
    spec = _register.find_spec("mlx_lm.quant.awq", importlib.import_module("mlx_lm.quant").__path__)
    awq = importlib.util.module_from_spec(spec)
    with pytest.warns(UserWarning, match="no AWQ recipe for this mlx-lm: AWQ_MODEL_CONFIGS"):
        spec.loader.exec_module(awq)
    assert "llama" in awq.AWQ_MODEL_CONFIGS


def test_only_norms_that_feed_projections_alone_take_a_scale_over():
    for options, expected in (
        ({}, True),
        ({"norm_position": "post"}, False),
        ({"norm": "none"}, False),
    ):
        args = LayerArgs(hidden_size=8, intermediate_size=8, **options)
        assert _register._scales_norm(Block(args)) is expected
