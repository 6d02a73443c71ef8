"""Arguments of a model: what is refused, and how they come back from config.json."""

import dataclasses
import json
import re

import pytest
from helpers.errors import refusal
from helpers.models import GROWING, VARIANTS

from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.lm import FOREIGN_KEYS, ModelArgs


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("vocab_size", 0, "greater than 0"), ("hidden_size", 2**31, "less than 2147483648"),
    ("num_hidden_layers", True, "a valid integer"),
    ("num_heads", 7, "a divisor of hidden_size 624"),
    ("gate", ["polar"], "'polar', 'polar_abs' or 'real'"), ("output_gate", 1, "a valid boolean"),
    ("dropout", 1.0, "less than 1"), ("dropout", float("nan"), "a finite number"),
    ("model_type", "llama", "'gateloop'"),
])  # fmt: skip
def test_impossible_values_are_named(key, value, expected):
    line = refusal(ModelArgs.from_dict, {key: value})
    assert line == f"config: {key} must be {expected}, got {value!r}"


@pytest.mark.parametrize(("options", "expected"), [
    ({"mixing_size": 9, "num_heads": 2}, "num_heads must be a divisor of mixing_size 9, got 2"),
    ({"num_heads": 2, "state_activation": "tanh"}, "state_activation must be 'identity'"),
    ({"transition": "lru", "gate": "real"}, "gate must be 'polar' with transition 'lru', got"),
    ({"transition": "linear_attention", "longest_half_life": 9}, "longest_half_life must be"),
    ({"transition": "retnet", "input_gate": "tied"}, "num_heads must be fewer"),
    ({"longest_half_life": 1}, "longest_half_life must be greater than 1"),
    ({"longest_half_life": 60, "gate": "polar_abs"}, "longest_half_life must be null with"),
    ({"longest_half_life": 60, "bias": False}, "longest_half_life must be null with"),
    ({"input_scale": True, "gate": "polar_abs"}, "input_scale must be false with polar_abs"),
    ({"input_scale": True, "transition": "lru"}, "input_scale must be False with transition"),
    ({"rope_theta": 1e4}, "rope_theta must be null with transition 'data_controlled', got"),
    ({"mixer": "softmax", "transition": "none", "rope_theta": 1e4}, "num_heads must be fewer"),
    ({"sub_norm": "head"}, "sub_norm must be a boolean with 8 heads of one"),
    ({"transition": "lru", "input_gate": "tied"}, "input_gate must be another"),
    ({"transition": "none"}, "transition must be 'linear_attention' for a = 1 with mixer"),
    ({"transition": "linear_attention", "mixer": "softmax"}, "transition must be 'none' for"),
    ({"mixer": "softmax", "state_activation": "tanh"}, "state_activation must be 'iden"),
    ({"mixer": "softmax", "conv_size": 4}, "conv_size must be null with mixer 'softmax', got"),
    ({"gate": "polar_abs", "input_gate": "tied"}, "input_gate must be another"),
    ({"conv_size": 257}, "conv_size must be less than or equal to 256, got 257"),
    ({"ablation": "transition", "input_gate": "tied"}, "input_gate must be another"),
    ({"mixing_size": 12, "output_projection": False}, "output_projection must be true"),
    ({"output_gate": True, "output_projection": False}, "output_projection must be true"),
    ({"num_outputs": 5, "tie_word_embeddings": True}, "num_outputs must be vocab_size 50257"),
    ({"hiden_size": 8}, r"unknown key hiden_size .did you mean hidden_size"),
])  # fmt: skip
def test_values_that_do_not_go_together_are_named(options, expected):
    assert re.match(f"config: {expected}", refusal(ModelArgs, hidden_size=8, **options))


@pytest.mark.parametrize("options", (VARIANTS | GROWING).values())
def test_a_config_comes_back_as_it_was(options):
    args = ModelArgs(**options)
    assert ModelArgs.from_dict(json.loads(json.dumps(dataclasses.asdict(args)))) == args


def test_unknown_config_keys_are_named_in_one_warning_and_those_of_mlx_lm_pass():
    config = {"hidden_size": 8, "rope_scaling": {}, "attention": True}
    message = "config.json: ignoring unknown attention, rope_scaling"
    with pytest.warns(UserWarning, match=f"^{message}$") as caught:
        args = ModelArgs.from_dict(dict.fromkeys(FOREIGN_KEYS) | config)
    assert len(caught) == 1
    assert args == ModelArgs(hidden_size=8)


@pytest.mark.parametrize(("options", "size"), [
    ({}, 24), ({"num_heads": 4}, 144), ({"mixing_size": 12}, 12), ({"mixer": "softmax"}, None),
])  # fmt: skip
def test_numbers_of_a_state(options, size):
    assert LayerArgs(hidden_size=24, **options).state_size == size
