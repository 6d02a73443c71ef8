"""Activations, norm and loss against float64, and against MLX's own."""

import io
import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, needs_native, normal

from mlx_gateloop.ops import pointwise
from mlx_gateloop.ops.cpu import why_missing

MLX = {"gelu": nn.gelu, "silu": nn.silu, "sigmoid": mx.sigmoid}
GRID = np.concatenate([np.linspace(-13, 13, 4001), np.linspace(-2, 2, 4001)]).astype(np.float32)
FAR = np.linspace(-110, -60, 5001).astype(np.float32)


def exact(name, x):
    """The function and its derivative in float64, without cancellation."""
    x = x.astype(np.float64)
    e = np.exp(-np.abs(x))
    s, rest = np.where(x < 0, e, 1) / (1 + e), np.where(x > 0, e, 1) / (1 + e)
    phi = 0.5 * np.array([math.erfc(-value / math.sqrt(2)) for value in x])
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return {
        "gelu": (x * phi, phi + x * density),
        "silu": (x * s, s * (1 + x * rest)),
        "sigmoid": (s, s * rest),
    }[name]


def units(got, want, least=0.0):
    """The largest difference in units in the last place, of values below `least` in least's."""
    size = np.maximum(np.abs(want), max(least, 1.2e-38)).astype(np.float32)
    return np.max(np.abs(as_numpy(got).astype(np.float64) - want) / np.spacing(size))


# At -91 the sigmoid has 18 bits left, and 91 times it is a normal number again.
@needs_native
@pytest.mark.parametrize(
    ("name", "x"), [*((name, GRID) for name in MLX), ("silu", FAR), ("sigmoid", FAR)]
)
def test_a_few_units_in_the_last_place(name, x):
    function, (value, slope) = getattr(pointwise, name), exact(name, x)
    with mx.stream(mx.cpu):
        assert units(function(mx.array(x)), value) < 4
        derivative = mx.grad(lambda x: function(x).sum())(mx.array(x))
        # gelu' and silu' cross zero as sums of terms of 1/4: no nearer than these are rounded
        assert units(derivative, slope, 0 if name == "sigmoid" or x is FAR else 0.25) < 5


@needs_native
def test_gelu_where_nothing_is_left_of_it_or_all():
    """Far below zero it differs from 0, as its derivative does, by subnormal numbers at most."""
    below = mx.array([-1e9, -40.0, -15.5, -13.5, -13.41, -13.39])
    above = mx.array([13.01, 13.5, 15.5, 40.0, 1e9])
    slope = mx.grad(lambda x: pointwise.gelu(x).sum())
    with mx.stream(mx.cpu):
        assert np.abs(as_numpy(pointwise.gelu(below))).max() < 1.2e-38
        assert np.abs(as_numpy(slope(below))).max() < 1.2e-38
        assert pointwise.gelu(above).tolist() == above.tolist()
        assert slope(above).tolist() == [1] * 5


@pytest.mark.parametrize("name", MLX)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 5, 7), (70000,)])
def test_any_shape_equals_mlx(name, shape):
    x, dy = normal(*shape, key=1), normal(*shape, key=2)
    function, mlx = getattr(pointwise, name), MLX[name]
    assert error(function(x), as_numpy(mlx(x))) < 2e-6
    for got, want in zip(mx.vjp(function, [x], [dy])[1], mx.vjp(mlx, [x], [dy])[1], strict=True):
        assert error(got, as_numpy(want)) < 2e-6


@pytest.mark.parametrize("name", MLX)
def test_transformations(name):
    function, mlx = getattr(pointwise, name), MLX[name]
    x = normal(3, 4, key=3)
    for transform in (
        lambda f: mx.vmap(mx.vmap(mx.grad(f))), lambda f: mx.vmap(mx.vmap(mx.grad(mx.grad(f)))),
        lambda f: mx.vmap(f, in_axes=1, out_axes=1), lambda f: lambda x: mx.jvp(f, [x], [x])[1][0],
        mx.compile,
    ):  # fmt: skip
        assert error(transform(function)(x), as_numpy(transform(mlx)(x))) < 5e-6


@pytest.mark.parametrize("name", MLX)
def test_not_a_number_and_infinity(name):
    y = getattr(pointwise, name)(mx.array([mx.nan, mx.inf, 1.0]))
    assert mx.isnan(y).tolist() == [True, False, False]
    assert y[1].item() == (1 if name == "sigmoid" else math.inf)


@pytest.mark.parametrize("name", MLX)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float64], ids=str)
def test_other_types_come_back(name, dtype):
    with mx.stream(mx.cpu):
        x = normal(50, key=4).astype(dtype)
        wide = x if dtype == mx.float64 else x.astype(mx.float32)
        y, want = getattr(pointwise, name)(x), MLX[name](wide)
        assert y.dtype == dtype
        assert mx.array_equal(y, want) if x is wide else error(y, as_numpy(want)) < 2**-8


def layer_norm(x, weight, bias):
    return pointwise.layer_norm(x, weight, bias, 1e-5)


def plain_layer_norm(x, weight, bias):
    rest = x - x.mean(-1, keepdims=True)
    return rest * mx.rsqrt(rest.square().mean(-1, keepdims=True) + 1e-5) * weight + bias


@pytest.mark.parametrize("shape", [(7,), (2, 3, 33), (300, 64), (0, 4)])
def test_layer_norm_equals_its_definition(shape):
    x, dy = normal(*shape) + 1, normal(*shape, key=1) + 1
    weight, bias = normal(*shape[-1:], key=2), normal(*shape[-1:], key=3)
    got_y, got = mx.vjp(layer_norm, [x, weight, bias], [dy])
    want_y, want = mx.vjp(plain_layer_norm, [x, weight, bias], [dy])
    for g, w in zip([*got_y, *got], [*want_y, *want], strict=True):
        assert error(g, as_numpy(w)) < 1e-5


@needs_native
@pytest.mark.parametrize("axis", [None, 0], ids=["one weight", "a weight each"])
def test_a_mapped_layer_norm_is_one_operation(axis):
    """Not one for each element of the mapped axis, 64 here, of weights or of their gradient."""
    x, bias = normal(64, 5, 8), normal(8, key=2)
    weight = normal(8, key=1) if axis is None else normal(64, 8, key=1)

    def mapped(f):
        slopes = mx.grad(lambda x, w, b: f(x, w, b).square().sum(), (0, 1, 2))
        y, found = (mx.vmap(g, in_axes=(0, axis, None))(x, weight, bias) for g in (f, slopes))
        return [y, *found]

    with mx.stream(mx.cpu):
        found, graph = mapped(layer_norm), io.StringIO()
        mx.export_to_dot(graph, *found[1:])
        assert graph.getvalue().count("GateLoopLayerNorm") <= 4
        for got, want in zip(found, mapped(plain_layer_norm), strict=True):
            assert error(got, as_numpy(want)) < 1e-5


@needs_native
def test_layer_norm_mapped_twice_or_over_nothing_and_its_curvature():
    x, weight, bias = normal(3, 5, 8), normal(3, 5, 8, key=1), normal(8, key=2)

    def slope(f, by):
        return mx.grad(lambda x, w: f(x, w, bias).square().sum(), argnums=by)

    def curvature(f):
        return mx.grad(lambda x: slope(f, 0)(x, bias)[..., 0].sum())(x)

    with mx.stream(mx.cpu):
        rows = mx.vmap(layer_norm, in_axes=(0, 0, None))
        for w, axis in ((weight, 0), (weight[0], None)):
            got = mx.vmap(rows, in_axes=(0, axis, None))(x, w, bias)
            assert error(got, as_numpy(plain_layer_norm(x, w, bias))) < 1e-5
        assert mx.vmap(slope(layer_norm, 1), in_axes=(0, None))(x[:0], bias).shape == (0, 8)
        assert error(curvature(layer_norm), as_numpy(curvature(plain_layer_norm))) < 1e-4


@pytest.mark.parametrize("shape", [(1, 2), (5, 3), (2, 6, 40), (64, 1000), (16, 60_000)])
def test_cross_entropy_equals_float64(shape):
    rng = np.random.default_rng(0)
    logits = 5 * rng.normal(size=shape).astype(np.float32)
    targets = rng.integers(0, shape[-1], shape[:-1])
    weight = rng.normal(size=shape[:-1]).astype(np.float32)
    wide, here = logits.astype(np.float64), targets[..., None] == np.arange(shape[-1])
    log_sum = np.log(np.exp(wide).sum(-1))
    slope = np.exp(wide - log_sum[..., None]) - here

    def loss(logits):
        return pointwise.cross_entropy(logits, mx.array(targets))

    (losses,), (gradient,) = mx.vjp(loss, [mx.array(logits)], [mx.array(weight)])
    assert losses.shape == shape[:-1]
    tolerance = 4e-6 + 5e-10 * shape[-1] if why_missing() else 1e-6  # MLX's own rounds every term
    assert error(losses, log_sum - (wide * here).sum(-1)) < tolerance
    assert error(gradient, slope * weight[..., None]) < tolerance


def test_cross_entropy_under_transformations():
    logits = normal(3, 4, 6)
    targets = mx.random.randint(0, 6, (3, 4), key=mx.random.key(8))
    want = nn.losses.cross_entropy(logits, targets)
    for transform in (mx.vmap, mx.compile):
        assert error(transform(pointwise.cross_entropy)(logits, targets), as_numpy(want)) < 1e-6

    def slope(x, f):
        return (mx.grad(lambda x: f(x, targets).sum())(x) * mx.cos(x)).sum()

    functions = pointwise.cross_entropy, nn.losses.cross_entropy
    got, want = (mx.grad(slope)(logits, f) for f in functions)
    assert error(got, as_numpy(want)) < 1e-5


INTEGERS = [getattr(mx, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("has_native", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_targets_of_any_integer_type(dtype, has_native, monkeypatch):
    """More classes than an 8-bit type counts, as in a vocabulary."""
    if not has_native:
        monkeypatch.setattr(pointwise, "extension_on_cpu", lambda: None)
    logits = normal(7, 300)
    targets = mx.array([0, 3, 17, 5, 126, 127, 2])

    def slope(targets):
        return mx.grad(lambda x: pointwise.cross_entropy(x, targets).sum())(logits)

    want = pointwise.cross_entropy(logits, targets)
    assert mx.array_equal(pointwise.cross_entropy(logits, targets.astype(dtype)), want)
    assert mx.array_equal(slope(targets.astype(dtype)), slope(targets))


@needs_native
def test_a_target_outside_the_vocabulary_gives_nan_there_alone():
    with mx.stream(mx.cpu):
        for dtype in (np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
            wrong = [4, np.iinfo(dtype).max, -1 if np.iinfo(dtype).min else 5]
            wrong += [2**32, -(2**32)] if dtype == np.int64 else []
            targets = mx.array(np.array([3, *wrong], dtype))
            losses = pointwise.cross_entropy(mx.zeros((len(targets), 4)), targets)
            assert mx.isnan(losses).tolist() == [False, *[True] * len(wrong)]


def test_infinite_logits_rule_a_class_out():
    losses = pointwise.cross_entropy(mx.array([[0.0, -mx.inf, 0.0]]), mx.array([0]))
    assert losses.item() == pytest.approx(math.log(2))


@needs_native
def test_the_loss_makes_nothing_as_large_as_the_logits_but_their_gradient():
    with mx.stream(mx.cpu):
        logits, targets = mx.random.normal((512, 4096)), mx.zeros((512,), mx.int32)
        mx.eval(targets)
        gradient = mx.grad(lambda x: pointwise.cross_entropy(x, targets).sum())
        assert peak_memory(gradient, logits) < 1.02 * logits.nbytes
