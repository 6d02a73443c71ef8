"""Products with weights as they are stored, against float64."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.reference import as_numpy, error, needs_native, normal
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.ops.cpu import extension
from mlx_gateloop.ops.linear import MAX_ROWS, expanding_linear, linear, must_expand

pytestmark = needs_native
KINDS = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16, "8-bit": None}
LAYERS = st.tuples(st.sampled_from(list(KINDS)), st.integers(1, 70), st.booleans())


def layer(kind, outputs, width, has_bias, seed):
    """A layer as it is stored, and its weights and bias in float64."""
    w, bias = normal(outputs, width, key=seed), normal(outputs, key=seed + 1)
    parts = mx.quantize(w, 32, 8) if kind == "8-bit" else (w.astype(KINDS[kind]), None, None)
    plain = mx.dequantize(*parts, 32, 8) if kind == "8-bit" else parts[0].astype(mx.float32)
    exact = as_numpy(plain).astype(np.float64), as_numpy(bias * has_bias).astype(np.float64)
    return (*parts, bias if has_bias else None), exact


@settings(max_examples=60)
@given(
    rows=st.integers(1, MAX_ROWS),
    width=st.sampled_from([32, 96, 320]),
    layers=st.lists(LAYERS, min_size=1, max_size=4),
)
def test_all_layers_give_the_exact_product(rows, width, layers):
    x = normal(1, rows, width, key=0)
    made = [layer(*each[:2], width, each[2], 2 * n + 1) for n, each in enumerate(layers)]
    with mx.stream(mx.cpu):
        for y, (stored, (w, bias)) in zip(linear(x, [s for s, _ in made]), made, strict=True):
            wide = as_numpy(x).astype(np.float64)
            exact, without_cancelling = wide @ w.T + bias, np.sqrt(wide**2 @ w.T**2).max()
            assert y.dtype == mx.float32
            assert error(y, exact, without_cancelling) < 2e-6
            assert error(expanding_linear(x, stored), exact, without_cancelling) < 2e-6
            assert must_expand(x, stored) == (stored[0].dtype != mx.float32)


def test_a_row_has_the_same_product_beside_others():
    x, (stored, _) = normal(7, 96, key=0), layer("bfloat16", 33, 96, True, 1)
    with mx.stream(mx.cpu):
        (whole,) = linear(x, [stored])
        for n in range(7):
            assert mx.array_equal(linear(x[n : n + 1], [stored])[0][0], whole[n])


def test_large_layers_are_split_over_threads():
    x, (stored, (w, bias)) = normal(2, 640, key=0), layer("8-bit", 9001, 640, True, 1)
    with mx.stream(mx.cpu):
        assert error(linear(x, [stored])[0], as_numpy(x).astype(np.float64) @ w.T + bias) < 2e-6


@pytest.mark.parametrize("kind", ["float32", "8-bit"])
def test_derivatives_and_vmap_are_those_of_the_composition(kind):
    x, (stored, _) = normal(3, 2, 64, key=0), layer(kind, 20, 64, True, 1)
    weight, *rest = stored

    def composed(x, w):
        w = mx.dequantize(weight, *rest[:2], 32, 8) if kind == "8-bit" else w
        return x @ w.T + rest[-1]

    def ours(x, w):
        return linear(x, [(weight if kind == "8-bit" else w, *rest)])[0]

    with mx.stream(mx.cpu):
        floats = mx.ones((20, 64)) if kind == "8-bit" else weight
        dy = normal(3, 2, 20, key=5)
        for function in (
            lambda f: mx.vjp(f, [x, floats], [dy])[1][0],
            lambda f: mx.vjp(f, [x, floats], [dy])[1][1],
            lambda f: mx.vmap(f, (1, None), 1)(x, floats),
            lambda f: mx.vmap(f, (0, 0))(x, mx.stack([floats, 2 * floats, floats])),
        ):
            assert error(function(ours), as_numpy(function(composed))) < 1e-5


@pytest.mark.parametrize(("x", "bias"), [
    *((mx.zeros(shape), mx.zeros(20)) for shape in [(1, 33), (MAX_ROWS + 1, 64), (0, 64)]),
    (mx.zeros((1, 64), mx.bfloat16), mx.zeros(20)), (mx.zeros((1, 64)), mx.zeros(20, mx.bfloat16)),
])  # fmt: skip
def test_what_does_not_fit_is_left_to_mlx(x, bias):
    with mx.stream(mx.cpu):
        assert linear(x, [(mx.zeros((20, x.shape[-1])), None, None, bias)]) is None


def test_wrong_shapes_are_errors():
    x, w = mx.zeros((1, 64)), mx.zeros((20, 64))
    for wrong in [(w[:, :32], None, None, None), (w, None, None, mx.zeros((19,)))]:
        with pytest.raises(ValueError, match="linear: "):
            extension().linear(x, [wrong])
