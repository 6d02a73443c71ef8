"""Mamba-2's layer against mlx-lm's, and its language model in parts, in a file and when trained."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.family import close, standalone_copy
from helpers.models import check_padding, padded, tokens
from mlx.utils import tree_map
from mlx_lm.models import mamba2

import mlx_gateloop as gl
from mlx_gateloop.family import standalone
from mlx_gateloop.family.ssd import RATES, SSD, STEPS, Model, ModelArgs

SHAPE = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "state_width": 8}


def arguments(**options):
    return ModelArgs(**SHAPE | {"num_heads": 4} | options)


def language_model():
    """A model with random weights, those included that start as constants."""
    mx.random.seed(0)
    model = Model(arguments())
    return model.update(tree_map(lambda w: w + 0.1 * mx.random.normal(w.shape), model.parameters()))


def of_mlx_lm(layer):
    """The layer in mlx-lm, whose projections and convolution are joined."""
    args, inner = layer.args, layer.args.inner_width
    block = mamba2.Mamba2Block(
        mamba2.ModelArgs(
            "mamba2", args.num_heads, inner // args.num_heads, 20, args.hidden_size, inner,
            args.state_width, 1, args.norm_eps, args.conv_size, 1, use_bias=False,
            use_conv_bias=False, tie_word_embeddings=False, time_step_limit=(0.0, float("inf")),
            time_step_rank="auto",
        ), 0,
    )  # fmt: skip
    projections = [layer[f"{name}_proj"].weight for name in ("z", "v", "k", "q", "dt")]
    filters = [layer[f"{name}_conv1d"].weight for name in ("v", "k", "q")]
    block.in_proj.weight = mx.concatenate(projections)
    block.conv1d.weight = mx.moveaxis(mx.concatenate(filters), 1, 2)
    block.update({name: layer[name] for name in ("A_log", "D", "dt_bias")})
    block.norm.weight, block.out_proj = layer.norm.weight, layer.o_proj
    return block


@pytest.mark.parametrize("heads", [1, 4])
def test_the_layer_is_that_of_mlx_lm(heads):
    mx.random.seed(heads)
    layer = SSD(arguments(num_heads=heads))
    layer.norm.weight = mx.random.normal((32,))
    x = mx.random.normal((2, 33, 16))
    close(layer(x), of_mlx_lm(layer)(x, None, None))


def test_steps_and_rates_start_in_the_published_ranges():
    mx.random.seed(0)
    layer = SSD(arguments(hidden_size=512, num_heads=1024))
    steps, rates = np.logaddexp(0, layer.dt_bias), np.exp(layer.A_log)
    ends = [steps.min(), steps.max(), rates.min(), rates.max()]
    np.testing.assert_allclose(ends, [*STEPS, *RATES], rtol=0.1)


def test_padded_parts_are_the_whole_text():
    model, lengths = language_model(), (30, 19)
    check_padding(model, padded(model, lengths, True), lengths, 17, True, close)


@pytest.mark.parametrize("strong", [1.0, 1e5, np.inf])
def test_the_file_of_a_saved_directory_computes_the_same_beside_strong_decays(strong):
    model = language_model()
    close(standalone_copy(model)(tokens(20)), model(tokens(20)))
    q, k, v, rate = mx.random.normal((4, 2, 40, 3, 4), key=mx.random.key(0))
    log_a = mx.where(rate > 1, -strong, -0.1 * mx.abs(rate))
    want = gl.gate_loop(q, k, v, gl.Transition.polar(log_a))
    for got, exact in zip(standalone.gate_loop(q, k, v, log_a, None), want, strict=True):
        close(got, exact)


def test_heads_must_divide_the_inner_width():
    assert "num_heads: expected a divisor of 32" in refusal(arguments, num_heads=5)
