"""The prediction after each block: with the blocks that follow removed, it is the model's own."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.models import GROWING, VARIANTS, close, tiny_model, tokens
from helpers.recurrent import recurrent_model

import mlx_gateloop as gl


@pytest.mark.parametrize("name", [*VARIANTS, "rotary"])
def test_each_row_is_a_model_of_the_first_blocks(name):
    model, text = tiny_model(**(VARIANTS | GROWING)[name]), tokens(9)
    logits = gl.watch.lens(model, text[0])
    assert logits.dtype == np.float32
    blocks = model.model.layers
    for count, row in enumerate(logits):
        model.model.layers = blocks[:count]
        close(row, model(text)[0])
    model.model.layers = blocks
    ranked = np.take_along_axis(logits, gl.watch.lens(model, text[0], top=3), -1)
    assert (np.diff(ranked) <= 0).all()
    assert (ranked[..., 0] == logits.max(-1)).all()


def test_what_has_no_lens():
    assert refusal(gl.watch.lens, recurrent_model("mamba2"), [1]).startswith("model: expected")
    assert "ids from 0 to 16" in refusal(gl.watch.lens, tiny_model(), mx.array([17]))
    assert refusal(gl.watch.lens, tiny_model(), [1, 2], since=2) == "since: expected 0 to 1, got 2"
    assert refusal(gl.watch.lens, tiny_model(), [1], 18) == "top: expected 0 to 17, got 18"
