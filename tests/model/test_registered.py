"""mlx-lm and transformers know the model type once the package is imported."""

import importlib

import pytest
from helpers.interpreter import python

from mlx_gateloop.model import lm


def test_mlx_lm_finds_our_classes_under_its_own_name():
    from mlx_lm.utils import _get_classes

    assert _get_classes({"model_type": "gateloop"}) == (lm.Model, lm.ModelArgs)
    with pytest.raises(AttributeError, match="no attribute 'Block'"):
        importlib.import_module("mlx_lm.models.gateloop").Block  # noqa: B018


def test_the_type_is_known_if_mlx_lm_comes_first():
    code = """
import sys, mlx_lm, mlx_gateloop
print(*(name for name in ("mlx_gateloop.model.lm",) if name in sys.modules))
import mlx_lm.models.gateloop as alias
from transformers import AutoConfig
print(alias.ModelArgs.__module__, AutoConfig.for_model("gateloop").model_type)
"""
    assert python(code).split() == ["mlx_gateloop.model.lm", "gateloop"]
