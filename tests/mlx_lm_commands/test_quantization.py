"""Models that mlx_lm converts and quantizes."""

import importlib

import mlx.core as mx
import pytest
from helpers.mlx_lm_commands import assert_transitions_untouched, local_dataset, quality
from helpers.models import save_tiny_model
from mlx.utils import tree_flatten

from mlx_gateloop.model.lm import is_state_transition


@pytest.fixture
def changed(directory, main, tmp_path):
    """The model that a command writes; its logits are like the original's."""

    def run(command, *options, least=0.95, original=directory):
        out = tmp_path / command
        source = "--hf-path" if command == "convert" else "--model"
        main(command, source, original, "--mlx-path", out, *options)
        model = assert_transitions_untouched(out, original if command in EXACT else None)
        assert quality(out, original) > least
        return model

    return run


def bits(model):
    """Bits of the quantized layers, by the last part of their names."""
    modules = model.named_modules()
    return {name.rsplit(".", 1)[-1]: m.bits for name, m in modules if hasattr(m, "bits")}


QUANTIZED = {"q_proj", "k_proj", "v_proj", "gate_proj", "out_proj", "up_proj", "down_proj"}
QUANTIZED |= {"embed_tokens", "lm_head"}
EXACT = ("convert", "gptq", "dynamic_quant")  # the others train or scale the transitions
CALIBRATION = ["--num-samples", 8, "--sequence-length", 64]
AWQ = ["--embed-bits", 8, "--embed-group-size", 64, "--n-grid", 4, *CALIBRATION]


@pytest.mark.parametrize(("count", "least"), [(8, 0.9995), (4, 0.95)])
def test_convert_quantizes(changed, directory, main, tmp_path, count, least):
    model = changed("convert", "-q", "--q-bits", count, least=least)
    assert bits(model) == dict.fromkeys(QUANTIZED, count)
    back = tmp_path / "back"
    main("convert", "--hf-path", tmp_path / "convert", "--mlx-path", back, "--dequantize")
    assert not bits(assert_transitions_untouched(back, directory))


def test_convert_with_a_mixed_recipe(changed):
    recipe = ["--quant-predicate", "mixed_2_6", "--q-group-size", 64]
    found = bits(changed("convert", "-q", *recipe, least=0.5))
    assert (found.keys(), {*found.values()}) == (QUANTIZED, {2, 6})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convert_casts_all_but_the_transitions(changed, dtype):
    model = changed("convert", "--dtype", dtype, least=0.999)
    for name, weight in tree_flatten(model.parameters()):
        expected = mx.float32 if is_state_transition(name) else getattr(mx, dtype)
        assert weight.dtype == expected, name


def test_gptq_and_dynamic_quant(changed):
    model = changed("gptq", "--bits", 4, "--fallback-bits", 8, *CALIBRATION)
    assert bits(model) == dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8}
    assert bits(changed("dynamic_quant", "--target-bpw", 12)).keys() == QUANTIZED


def test_dwq(changed, monkeypatch):
    monkeypatch.setattr(importlib.import_module("mlx_lm.quant.dwq"), "load_dataset", local_dataset)
    sizes = ["--num-samples", 16, "--max-seq-length", 32, "--batch-size", 4]
    assert bits(changed("dwq", *sizes)) == dict.fromkeys(QUANTIZED, 4)


def test_awq(changed, tmp_path):
    expected = dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8, "lm_head": 8}
    assert bits(changed("awq", *AWQ)) == expected
    names = mx.load(str(tmp_path / "awq" / "model.safetensors"))
    assert not [name for name in names if "input_feat" in name]


@pytest.mark.parametrize("options", [
    {"transition": "s5", "norm_position": "post"}, {"mixer": "softmax", "num_heads": 4},
    {"tie_word_embeddings": True, "bias": False, "gate": "real", "norm": "rms"},
])  # fmt: skip
def test_awq_of_other_kinds(main, tmp_path, options):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    save_tiny_model(tmp_path / "m", **sizes | options)
    main("awq", "--model", tmp_path / "m", "--mlx-path", tmp_path / "out", *AWQ)
    assert quality(tmp_path / "out", tmp_path / "m") > 0.95
