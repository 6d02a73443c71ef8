"""Models that mlx_lm converts and quantizes."""

import importlib

import mlx.core as mx
import pytest
from helpers.mlx_lm_commands import (
    QUANTIZED,
    assert_transitions_untouched,
    bits,
    local_dataset,
    quality,
)
from helpers.models import save_tiny_model
from mlx.utils import tree_flatten

from mlx_gateloop.model.lm import is_state_transition


@pytest.mark.parametrize(("count", "least"), [(8, 0.9995), (4, 0.95)])
def test_convert_quantizes(directory, main, tmp_path, count, least):
    out = tmp_path / "out"
    main("convert", "--hf-path", directory, "--mlx-path", out, "-q", "--q-bits", count)
    model = assert_transitions_untouched(out, directory)
    assert bits(model) == dict.fromkeys(QUANTIZED, count)
    assert quality(out, directory) > least
    back = tmp_path / "back"
    main("convert", "--hf-path", out, "--mlx-path", back, "--dequantize")
    assert not bits(assert_transitions_untouched(back, directory))


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4"])
def test_convert_with_mixed_recipes(directory, main, tmp_path, recipe):
    out = tmp_path / "out"
    options = ["-q", "--quant-predicate", recipe, "--q-group-size", 64]
    main("convert", "--hf-path", directory, "--mlx-path", out, *options)
    model = assert_transitions_untouched(out, directory)
    low, high = (int(part) for part in recipe.split("_")[1:])
    assert set(bits(model)) == QUANTIZED
    assert set(bits(model).values()) == {low, high}
    assert quality(out, directory) > (0.5 if low == 2 else 0.8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convert_casts_all_but_the_transitions(directory, main, tmp_path, dtype):
    out = tmp_path / "out"
    main("convert", "--hf-path", directory, "--mlx-path", out, "--dtype", dtype)
    model = assert_transitions_untouched(out, directory)
    for name, weight in tree_flatten(model.parameters()):
        expected = mx.float32 if is_state_transition(name) else getattr(mx, dtype)
        assert weight.dtype == expected, name
    assert quality(out, directory) > 0.999


CALIBRATION = ["--num-samples", 8, "--sequence-length", 64]


def test_gptq(directory, main, tmp_path):
    out = tmp_path / "out"
    options = ["--bits", 4, "--fallback-bits", 8, *CALIBRATION]
    main("gptq", "--model", directory, "--mlx-path", out, *options)
    expected = dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8}
    assert bits(assert_transitions_untouched(out, directory)) == expected
    assert quality(out, directory) > 0.95


def test_dynamic_quant(directory, main, tmp_path):
    out = tmp_path / "out"
    main("dynamic_quant", "--model", directory, "--mlx-path", out, "--target-bpw", 12)
    model = assert_transitions_untouched(out, directory)
    assert bits(model).keys() == QUANTIZED
    assert quality(out, directory) > 0.95


def test_dwq(directory, main, tmp_path, monkeypatch):
    module = importlib.import_module("mlx_lm.quant.dwq")
    monkeypatch.setattr(module, "load_dataset", local_dataset)
    out = tmp_path / "out"
    sizes = ["--num-samples", 16, "--max-seq-length", 32, "--batch-size", 4]
    main("dwq", "--model", directory, "--mlx-path", out, *sizes)
    model = assert_transitions_untouched(out)  # distillation trains them a little
    assert bits(model) == dict.fromkeys(QUANTIZED, 4)
    assert quality(out, directory) > 0.95


AWQ = ["--embed-bits", 8, "--embed-group-size", 64, "--n-grid", 4, *CALIBRATION]


def assert_awq(out, directory):
    model = assert_transitions_untouched(out)  # they take the norm's scale over
    expected = dict.fromkeys(QUANTIZED, 4) | {"embed_tokens": 8, "lm_head": 8}
    assert bits(model) == expected
    assert quality(out, directory) > 0.95
    assert not [name for name in mx.load(str(out / "model.safetensors")) if "input_feat" in name]


def test_awq(directory, main, tmp_path):
    out = tmp_path / "out"
    main("awq", "--model", directory, "--mlx-path", out, *AWQ)
    assert_awq(out, directory)


@pytest.mark.parametrize(
    "options",
    [
        {"gate": "real"},
        {"transition": "fixed"},
        {"transition": "s5"},
        {"mixer": "softmax", "num_heads": 4},
        {"tie_word_embeddings": True, "bias": False},
        {"norm": "rms"},
        {"norm": "none"},
        {"norm_position": "post"},
    ],
)
def test_awq_of_other_kinds(main, tmp_path, options):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    save_tiny_model(tmp_path / "m", **sizes | options)
    main("awq", "--model", tmp_path / "m", "--mlx-path", tmp_path / "out", *AWQ)
    assert quality(tmp_path / "out", tmp_path / "m") > 0.95
