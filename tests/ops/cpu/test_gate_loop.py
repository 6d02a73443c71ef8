"""The C++ extension alone: fused gates, and derivatives written by hand."""

import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers import gated
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, needs_native, random_case

import mlx_gateloop as gl

pytestmark = needs_native
FUSED = partial(gl.gate_loop, mode="scan", backend="cpu")
SHAPE = (2, 37, 5)


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def operator(q, k, v, *gates, backend="cpu", **options):
    a = gl.Transition.sigmoid(*gates)
    return gl.gate_loop(q, k, v, a, mode="scan", backend=backend, **options)


@pytest.mark.parametrize(
    ("form", "is_complex", "masked"),
    list(product(["sigmoid", "polar"], [True, False], [0.0, 0.3])),
)
def test_fused_gates_and_their_gradients(form, is_complex, masked):
    # Half of the product: every three of the four values meet.
    reverse = (form == "polar") ^ is_complex ^ (masked > 0)
    case = random_case(4, 70, is_complex=is_complex, masked=masked, reverse=reverse)
    gated.check(FUSED, case, form)


@pytest.mark.parametrize("width", [1, 15, 33, 512, 513, 1100])
def test_any_width_of_channels(width):
    arrays = [normal(2, 40, width, key=i) for i in range(5)]

    def gradient(backend):
        loss = mx.grad(lambda *xs: operator(*xs, backend=backend)[0].square().sum(), argnums=(0, 3))
        return [operator(*arrays, backend=backend)[0], *loss(*arrays)]

    for got, want in zip(gradient("cpu"), gradient("mlx"), strict=True):
        assert error(got, as_numpy(want)) < 2e-6


def test_threads_and_their_blocks_change_no_bit():
    # More work than one thread gets, in rows that no block divides; each batch alone is less.
    arrays = [normal(5, 300, 77, key=i) for i in range(5)]
    whole, last = operator(*arrays)
    for b in range(5):
        alone, state = operator(*(x[b : b + 1] for x in arrays))
        assert mx.array_equal(whole[b], alone[0])
        assert mx.array_equal(last[b], state[0])


def steps(length, heads, count=5):
    """q, k, v, gamma and, of five, theta; without or with heads."""
    sizes = [(2, 9), (2, 9), (2, 17), (2, 9), (2, 9)] if heads else [(9,)] * 5
    return [normal(2, length, *size, key=i) for i, size in enumerate(sizes[:count])]


@pytest.mark.parametrize("heads", [False, True])
def test_a_state_carried_over_any_cut_changes_no_bit(heads):
    arrays = steps(150, heads)
    whole, last = operator(*arrays)
    # With heads a chunk of 64 steps is one product: other cuts would sum in another order.
    for cut in (64,) if heads else (1, 31, 32, 33, 149):
        first, h = operator(*(x[:, :cut] for x in arrays))
        second, h = operator(*(x[:, cut:] for x in arrays), h0=h)
        assert mx.array_equal(mx.concatenate([first, second], 1), whole)
        assert mx.array_equal(h, last)


@pytest.mark.parametrize("heads", [False, True])
def test_inputs_of_any_layout(heads):
    arrays = steps(40, heads)
    turned = [mx.contiguous(x.T).T for x in arrays]
    for got, want in zip(operator(*turned), operator(*arrays), strict=True):
        assert mx.array_equal(got, want)


@pytest.mark.parametrize(("heads", "count"), [(False, 5), (True, 5), (True, 4)])
def test_shapeless_compilation(heads, count):
    compiled = mx.compile(lambda *xs: operator(*xs), shapeless=True)
    for length in (20, 64, 150):
        arrays = steps(length, heads, count)
        for got, want in zip(compiled(*arrays), operator(*arrays), strict=True):
            assert mx.array_equal(got, want)


def test_a_mask_made_of_the_inputs_has_no_gradient():
    q = normal(2, 5, 3)
    h0 = normal(2, 2, 3, key=1)
    ways = [
        lambda q: mx.logical_and(q.sum(-1) > 0, q[..., 0] < 3),
        lambda q: mx.isnan(q[..., 0]),
        lambda q: q.max(-1) > 0.5,
    ]
    for way in ways:
        for state in (None, h0):

            def loss(q, backend="cpu", way=way, state=state):
                y, h = operator(q, q, q, q, q, h0=state, mask=way(q), backend=backend)
                return y.square().sum() + h.sum()

            want = mx.grad(lambda q, loss=loss: loss(q, "mlx"))(q)
            assert error(mx.grad(loss)(q), as_numpy(want)) < 2e-6
            slope = mx.grad(lambda q, loss=loss: mx.grad(loss)(q).sum())(q)
            assert mx.isfinite(slope).all()
    _, (_, by_mask) = mx.vjp(
        lambda q, m: operator(q, q, q, q, q, h0=h0, mask=m)[:1], [q, q[..., 0] > 0], [q]
    )
    assert by_mask.shape == (2, 5)


@pytest.mark.parametrize("what", ["scan", "gates", "state", "weight"])
def test_shapeless_compilation_refuses_what_does_not_fit(what):
    from mlx_gateloop.ops import pointwise

    captured = normal(2, 2, 5), normal(2, 7, 5), normal(5)
    mx.eval(captured)
    functions = {
        "scan": lambda x: gl.linear_scan(x, captured[1], backend="cpu"),
        "gates": lambda x: operator(x, x, x, captured[1], x)[0],
        "state": lambda x: operator(x, x, x, x, x, h0=captured[0])[0],
        "weight": lambda x: pointwise.layer_norm(x, captured[2], captured[2], 1e-5),
    }
    compiled = mx.compile(functions[what], shapeless=True)
    mx.eval(compiled(normal(2, 7, 5)))
    larger = {"state": (300, 7, 5), "weight": (2, 7, 500)}.get(what, (2, 700, 5))
    with pytest.raises(ValueError, match=r"gate_loop|linear_scan|layer_norm"):
        mx.eval(compiled(normal(*larger)))


def test_shapeless_compilation_of_scan_norm_and_loss():
    from mlx_gateloop.ops import pointwise

    weight = normal(5)
    mx.eval(weight)
    functions = [
        lambda x: gl.linear_scan(x, x, backend="cpu"),
        lambda x: pointwise.layer_norm(x, weight, weight, 1e-5),
    ]
    for function in functions:
        compiled = mx.compile(function, shapeless=True)
        for shape in [(2, 7, 5), (3, 9, 5)]:
            x = normal(*shape)
            assert mx.array_equal(compiled(x), function(x))
    loss = mx.compile(pointwise.cross_entropy, shapeless=True)
    for length in (3, 4):
        x, t = normal(2, length, 5), mx.zeros((2, length), mx.int32)
        assert mx.array_equal(loss(x, t), pointwise.cross_entropy(x, t))


def test_a_real_transition_that_overflows_leaves_the_imaginary_plane_alone():
    x, h0 = mx.ones((1, 60, 1)), mx.ones((1, 2, 1))

    def loss(h0):
        return gl.gate_loop(x, x, x, 1e3 * x, h0, backend="cpu")[0].sum()

    assert mx.grad(loss)(h0)[0, 1, 0].item() == 0


def test_jvp_of_the_gradient_with_real_transitions():
    arrays, directions = ([normal(*SHAPE, key=k + i) for i in range(4)] for k in (0, 20))
    h0 = normal(2, 2, 5, key=7)

    def gradient_along(*xs):
        def loss(*xs):
            a = gl.Transition.sigmoid(xs[3])
            y, h = gl.gate_loop(*xs[:3], a, h0, backend="cpu")
            return y.square().sum() + h.square().sum()

        slopes = mx.grad(loss, argnums=(0, 1, 2, 3))(*xs)
        return sum((g * d).sum() for g, d in zip(slopes, directions, strict=True))

    _, (got,) = mx.jvp(lambda *xs: [gradient_along(*xs)], arrays, directions)
    assert got.item() == pytest.approx(numerically(gradient_along, arrays, directions), rel=2e-3)


def numerically(function, arrays, directions, eps=1e-2):
    """The derivative along the directions, by central differences of the fourth order."""

    def at(t):
        return function(*(x + t * d for x, d in zip(arrays, directions, strict=True))).item()

    return (8 * (at(eps) - at(-eps)) - at(2 * eps) + at(-2 * eps)) / (12 * eps)


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"mask": normal(2, 37, key=9) > -1}])
def test_second_derivatives_of_the_operator(options):
    arrays, directions = ([normal(*SHAPE, key=k + i) for i in range(5)] for k in (0, 20))

    def gradient_along(*xs):
        def loss(*xs):
            y, h = operator(*xs, **options)
            return y.square().sum() + h.square().sum()

        slopes = mx.grad(loss, argnums=(0, 1, 2, 3, 4))(*xs)
        return sum((g * d).sum() for g, d in zip(slopes, directions, strict=True))

    seconds = mx.grad(gradient_along, argnums=(0, 1, 2, 3, 4))(*arrays)
    got = sum((g * d).sum().item() for g, d in zip(seconds, directions, strict=True))
    assert got == pytest.approx(numerically(gradient_along, arrays, directions), rel=2e-3)


@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_derivatives_of_the_scan(is_complex, reverse):
    def planes(key):
        count = 2 if is_complex else 1
        a = [normal(*SHAPE, key=key + i) * 0.5 for i in range(count)]
        x = [normal(*SHAPE, key=key + 2 + i) for i in range(count)]
        return [*a, *x, *(normal(2, 5, key=key + 4 + i) for i in range(count))]

    arrays, directions = planes(0), planes(20)

    def states(*arrays):
        parts = [arrays[i : i + len(arrays) // 3] for i in range(0, len(arrays), len(arrays) // 3)]
        a, x, h0 = (p[0] if len(p) == 1 else p[0] + 1j * p[1] for p in parts)
        h = gl.linear_scan(a, x, h0, reverse=reverse, backend="cpu")
        return mx.real(h), mx.imag(h)

    def loss(*arrays):
        return sum(h.square().sum() for h in states(*arrays))

    everything = tuple(range(len(arrays)))

    def gradient_along(*xs):
        slopes = mx.grad(loss, argnums=everything)(*xs)
        return sum((g * d).sum() for g, d in zip(slopes, directions, strict=True))

    first = gradient_along(*arrays).item()
    assert first == pytest.approx(numerically(loss, arrays, directions), rel=1e-3)
    seconds = mx.grad(gradient_along, argnums=everything)(*arrays)
    got = sum((g * d).sum().item() for g, d in zip(seconds, directions, strict=True))
    assert got == pytest.approx(numerically(gradient_along, arrays, directions), rel=2e-3)
    _, moved = mx.jvp(lambda *xs: [loss(*xs)], arrays, directions)
    assert moved[0].item() == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 3)], ids=["max-headed", "heads"])
@pytest.mark.parametrize("has_h0", [True, False])
@pytest.mark.parametrize("is_complex", [True, False])
def test_derivatives_of_composed_derivatives_under_vmap(is_complex, has_h0, shape):
    x, t = (normal(3, 1, *shape, key=i) for i in range(2))
    state = (1, 1 + is_complex, *shape[1:], *shape[2:])
    h0 = normal(*state, key=2) if has_h0 else None

    def loss(x, backend):
        a = gl.Transition.sigmoid(x, x if is_complex else None)
        return gl.gate_loop(x, x, x, a, h0, mode="scan", backend=backend)[0].square().sum()

    def along(x, t, backend):
        return mx.jvp(lambda x: mx.grad(loss)(x, backend), [x], [t])[1][0]

    def second(x, backend):
        return mx.grad(lambda x: mx.grad(loss)(x, backend).sum())(x)

    got = mx.vmap(lambda x, t: along(x, t, "cpu"))(x, t)
    assert error(got, np.stack([along(*pair, "mlx") for pair in zip(x, t, strict=True)])) < 1e-5
    got = mx.vmap(lambda x: second(x, "cpu"))(x)
    assert error(got, np.stack([second(one, "mlx") for one in x])) < 1e-5


def test_memory_of_the_gradient_is_five_planes():
    length, width = 65536, 64
    *arrays, weight = [normal(1, length, width, key=i) for i in range(6)]
    mx.eval(weight)
    gradient = mx.grad(lambda *xs: (operator(*xs)[0] * weight).sum(), argnums=(0, 1, 2, 3, 4))
    planes = peak_memory(gradient, *arrays) / arrays[0].nbytes
    # the loss's gradient by y, and of the operator five gradients and 2 / 32 of a plane of states
    assert planes < 1 + 5.1


def test_a_wrong_call_raises_before_it_reads():
    from mlx_gateloop.ops.cpu import extension

    native, x = extension(), mx.zeros((1, 4, 2))
    with pytest.raises(ValueError, match="q, k, v and a"):
        native.gate_loop(x, x, x, mx.zeros((1, 3, 2)), None, None, None, form=0, reverse=False)
    with pytest.raises(ValueError, match="mask"):
        native.gate_loop(x, x, x, x, None, None, x, form=0, reverse=False)
    with pytest.raises(ValueError, match="a and x have one shape"):
        native.linear_scan([x], [mx.zeros((1, 4, 3))], [])
    with pytest.raises(ValueError, match=r"targets \[...\]"):
        native.cross_entropy(x[0], mx.zeros((3,), mx.int64))


def test_no_shapeless_call_reads_beyond_its_arrays():
    program = [sys.executable, str(Path(__file__).with_name("shapeless.py")), "40", "1"]
    child = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode == 0, child.stdout[-500:] + child.stderr[-2000:]


def test_a_captured_gradient_of_other_shapes_is_refused():
    arrays, weight = [normal(2, 7, 5, key=i) for i in range(5)], normal(2, 7, 5, key=9)
    mx.eval(weight)

    def pulled(*xs):
        return mx.vjp(lambda *xs: operator(*xs)[:1], list(xs), [weight])[1]

    compiled = mx.compile(pulled, shapeless=True)
    assert mx.array_equal(compiled(*arrays)[0], pulled(*arrays)[0])
    with pytest.raises(ValueError, match="gradients of y and of the last state"):
        mx.eval(compiled(*(normal(2, 7000, 500, key=i) for i in range(5))))
