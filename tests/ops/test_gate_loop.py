"""Every mode against the float64 loop: outputs, final state and every gradient."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from helpers.memory import peak_memory
from helpers.reference import (
    Case,
    as_numpy,
    error,
    forward,
    gradients,
    needs_native,
    random_case,
    to_planes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl

WAYS = {
    "recurrent": {"mode": "recurrent"},
    "scan": {"mode": "scan", "backend": "mlx"},
    "native": {"mode": "scan", "backend": "cpu"},
    "attention": {"mode": "attention"},
    "auto": {},
}
NATIVE = pytest.param("native", marks=needs_native)
MODES = ["recurrent", "scan", NATIVE, "attention", "auto"]
HEADS = {"max-headed": (5, 1, 1), "heads": (2, 3, 4)}
LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 1000]
ROUNDING = {mx.float32: 0.0, mx.bfloat16: 2**-8, mx.float16: 2**-11}


def arguments(case: Case, dtype: mx.Dtype = mx.float32) -> list[mx.array]:
    """q, k, v, the planes of a, and h0, as mlx arrays in the public layout."""
    planes = [case.a.real, case.a.imag] if np.iscomplexobj(case.a) else [case.a]
    arrays = [mx.array(x.astype(np.float32)) for x in (case.q, case.k, case.v, *planes)]
    state = to_planes(case.h0)
    if case.max_headed:
        arrays, state = [x[..., 0] for x in arrays], state[..., 0, 0]
    return [x.astype(dtype) for x in arrays[:3]] + [*arrays[3:], state]


def run(case: Case, arrays: list[mx.array], mode: str) -> tuple[mx.array, mx.array]:
    q, k, v, *planes, h0 = arrays
    a = planes[0] if len(planes) == 1 else planes[0] + 1j * planes[1]
    mask = None if case.mask.all() else mx.array(case.mask.copy())
    return gl.gate_loop(q, k, v, a, h0, mask=mask, reverse=case.reverse, **WAYS[mode])


def check(
    case: Case,
    mode: str,
    dtype: mx.Dtype = mx.float32,
    output: float = 2e-6,
    gradient: float = 4e-6,
) -> None:
    arrays = arguments(case, dtype)
    y, h = run(case, arrays, mode)
    want_y, want_h, _ = forward(case)
    assert y.dtype == dtype
    assert y.shape == arrays[2].shape
    assert h.dtype == mx.float32
    assert h.shape == arrays[-1].shape
    rounding = ROUNDING[dtype]
    assert error(y, want_y) <= max(output, rounding)
    assert error(h, as_numpy(to_planes(want_h))) <= output

    dy = mx.array(case.dy.astype(np.float32)).reshape(y.shape)
    dh = to_planes(case.dh).reshape(h.shape)

    def loss(arrays: list[mx.array]) -> mx.array:
        y, h = run(case, arrays, mode)
        return (y.astype(mx.float32) * dy).sum() + (h * dh).sum()

    got = mx.grad(loss)(arrays)
    want = gradients(case)
    planes = [want["a"].real, want["a"].imag] if np.iscomplexobj(case.a) else [want["a"]]
    wanted = [want["q"], want["k"], want["v"], *planes, as_numpy(to_planes(want["h0"]))]
    for name, g, w in zip(["q", "k", "v", "a", "a.imag", "h0"], got, wanted, strict=False):
        tolerance = max(gradient, rounding if name in "qkv" else 0)
        assert error(g, w) <= tolerance, f"gradient of {name}"


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_agrees_with_the_loop(mode, heads, length):
    if mode == "attention":  # O(L^2), and without chunks that a longer text would fill
        length = min(length, 300)
    is_complex = (length % 2 == 0) == (heads == HEADS["heads"])
    check(random_case(length, length, heads=heads, is_complex=is_complex, batch=1), mode)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_half_precision_is_rounded_only_at_the_edges(mode, heads, dtype):
    check(random_case(7, 65, heads=heads, dtype=dtype), mode, dtype)


@pytest.mark.parametrize(
    ("one_gate_per_head", "reverse", "masked"),
    [(False, False, 0.0), (False, True, 0.3), (True, False, 0.3), (True, True, 0.0)],
)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_mask_reverse_and_shared_gates(mode, heads, one_gate_per_head, reverse, masked):
    case = random_case(
        3,
        67,
        heads=heads,
        one_gate_per_head=one_gate_per_head,
        reverse=reverse,
        masked=masked,
    )
    check(case, mode)


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", ["recurrent", "scan", NATIVE])
def test_magnitudes_near_one_over_4096_steps(mode, heads):
    case = random_case(11, 4096, heads=heads, batch=1, resets=0)
    magnitude = 1 - 10 ** np.random.default_rng(5).uniform(-6, -3, case.a.shape)
    a = magnitude * np.exp(1j * np.angle(case.a))
    case = replace(case, a=a.astype(np.complex64).astype(np.complex128))
    check(case, mode, output=5e-6, gradient=2e-5)


def test_attention_keeps_its_phases_over_512_steps_near_one():
    case = random_case(12, 512, heads=(1, 1, 1), batch=1, resets=0)
    a = (1 - 1e-5) * np.exp(1j * np.angle(case.a))
    case = replace(case, a=a.astype(np.complex64).astype(np.complex128))
    check(case, "attention", output=5e-6, gradient=1e-5)


def test_attention_is_stable_where_the_quotient_of_products_underflows():
    # |a|^n of 0.01^200 is far below the smallest float32; the paper's K / pi would be inf or nan.
    case = random_case(13, 200, heads=(3, 1, 1), resets=0)
    check(replace(case, a=np.full_like(case.a, np.float32(0.01))), "attention")


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_forgets_everything_exactly(mode):
    case = random_case(17, 40, resets=0)
    case.a[:, 20] = 0
    loud = replace(case, k=case.k.copy())
    loud.k[:, :20] *= 1e6
    y, h = run(case, arguments(case), mode)
    y_loud, h_loud = run(loud, arguments(loud), mode)
    assert mx.array_equal(y[:, 20:], y_loud[:, 20:])
    assert mx.array_equal(h, h_loud)


@pytest.mark.parametrize("mode", MODES)
def test_masked_garbage_reaches_neither_outputs_nor_gradients(mode):
    case = random_case(19, 33, masked=0.4)
    q, k, v, re, im, h0 = arguments(case)
    hole = ~mx.array(case.mask)[..., None]
    broken = [mx.where(hole, mx.nan, x) for x in (q, k, v, re, im)] + [h0]

    def loss(arrays: list[mx.array]) -> mx.array:
        y, h = run(case, arrays, mode)
        return (y * y).sum() + (h * h).sum()

    value, grads = mx.value_and_grad(loss)(broken)
    assert value.item() == pytest.approx(loss([q, k, v, re, im, h0]).item(), rel=1e-6)
    assert all(mx.isfinite(g).all().item() for g in grads)


@pytest.mark.parametrize("form", ["sigmoid", "polar", "real"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_masked_gates_reach_neither_outputs_nor_gradients(mode, heads, form):
    case = random_case(19, 9, heads=heads, masked=0.4)
    mask, h0 = mx.array(case.mask.copy()), arguments(case)[-1]
    live = mask[..., None] if case.max_headed else mask[..., None, None]
    *projections, gamma, theta, _ = arguments(case)
    clean = [*projections, -mx.abs(gamma), *([theta] if form != "real" else [])]

    def garbage(x):
        return mx.array([mx.nan, mx.inf, -mx.inf])[mx.arange(x.size) % 3].reshape(x.shape)

    def loss(arrays, h0):
        q, k, v, *gates = arrays
        a = getattr(gl.Transition, "polar" if form == "polar" else "sigmoid")(*gates)
        y, h = gl.gate_loop(q, k, v, a, h0, mask=mask, **WAYS[mode])
        return (y * y).sum() + (h * h).sum()

    gradient = mx.value_and_grad(loss, argnums=(0, 1))
    value, (slopes, by_h0) = gradient([mx.where(live, x, garbage(x)) for x in clean], h0)
    want, (wanted, by_clean_h0) = gradient([mx.where(live, x, 0) for x in clean], h0)
    assert mx.array_equal(value, want)
    for got, slope in zip([*slopes, by_h0], [*wanted, by_clean_h0], strict=True):
        assert mx.array_equal(got, slope)
    for slope in slopes:
        assert mx.array_equal(slope, mx.where(live, slope, 0))


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("mode", MODES)
def test_empty_batches_and_lengths(mode, shape, heads):
    batch, length = shape
    case = random_case(0, length, batch=batch, heads=heads)
    arrays = arguments(case)
    y, h = run(case, arrays, mode)
    assert y.shape == arrays[2].shape
    assert mx.array_equal(h, arrays[-1])


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    length=st.integers(2, 150),
    cut=st.integers(1, 149),
    heads=st.sampled_from(list(HEADS.values())),
    is_complex=st.booleans(),
    reverse=st.booleans(),
    modes=st.tuples(*[st.sampled_from(["recurrent", "scan", "attention", "auto"])] * 2),
)
def test_any_chunking_with_the_state_carried_is_the_whole(
    seed, length, cut, heads, is_complex, reverse, modes
):
    case = random_case(seed, length, heads=heads, is_complex=is_complex, reverse=reverse, batch=1)
    cut = min(cut, length - 1)
    q, k, v, *planes, h0 = arguments(case)
    a = planes[0] if len(planes) == 1 else planes[0] + 1j * planes[1]
    whole, last = gl.gate_loop(q, k, v, a, h0, reverse=reverse)
    spans = [slice(cut), slice(cut, length)]
    parts = {}
    for i, mode in zip((1, 0) if reverse else (0, 1), modes, strict=True):
        piece = (x[:, spans[i]] for x in (q, k, v, a))
        parts[i], h0 = gl.gate_loop(*piece, h0, reverse=reverse, **WAYS[mode])
    joined = mx.concatenate([parts[0], parts[1]], 1)
    assert error(joined, as_numpy(whole)) < 2e-6
    assert error(h0, as_numpy(last)) < 2e-6


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16), length=st.integers(1, 130), masked=st.sampled_from([0.0, 0.3]))
def test_reverse_is_the_forward_run_of_the_flipped_sequence(seed, length, masked):
    case = random_case(seed, length, masked=masked, batch=1)
    y, h = run(replace(case, reverse=True), arguments(case), "scan")
    flip = {name: getattr(case, name)[:, ::-1] for name in ("q", "k", "v", "a", "mask")}
    flipped = replace(case, **flip)
    y_flipped, h_flipped = run(flipped, arguments(flipped), "scan")
    assert error(y[:, ::-1], as_numpy(y_flipped)) < 2e-6
    assert error(h, as_numpy(h_flipped)) < 2e-6


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_transformations(mode, heads):
    """mx.vmap, mx.compile, mx.checkpoint and mx.jvp see the same function."""
    if mode == "auto" and mx.default_device().type == mx.gpu:
        pytest.skip("MLX gives kernels on GPUs no vmap and no jvp")
    H, K, V = heads
    inner = (2, 40, H) if K == V == 1 else (2, 40, H, K)
    values = inner if K == V == 1 else (2, 40, H, V)
    keys = mx.random.split(mx.random.key(1), 5)
    shapes = [inner, inner, values, inner, inner]
    many = [mx.random.normal((3, *s), key=key) for s, key in zip(shapes, keys, strict=True)]
    one = [x[0] for x in many]

    def outputs(q, k, v, gamma, theta):
        return gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta), **WAYS[mode])[0]

    gradient = mx.grad(lambda *xs: (outputs(*xs) ** 2).sum(), argnums=(0, 1, 2, 3, 4))
    checkpointed = mx.grad(
        lambda *xs: (mx.checkpoint(outputs)(*xs) ** 2).sum(), argnums=(0, 1, 2, 3, 4)
    )
    y, grads = outputs(*one), gradient(*one)
    assert error(mx.vmap(outputs)(*many)[0], as_numpy(y)) < 1e-6
    assert error(mx.compile(outputs)(*one), as_numpy(y)) < 1e-6
    for other in (mx.compile(gradient), checkpointed, lambda *_: _first(mx.vmap(gradient)(*many))):
        for got, want in zip(other(*one), grads, strict=True):
            assert error(got, as_numpy(want)) < 2e-6
    # The jvp along a direction d of y against w is the vjp of w against d.
    directions = [mx.random.normal(x.shape, key=mx.random.key(2)) for x in one]
    weight = mx.random.normal(y.shape, key=mx.random.key(3))
    _, (moved,) = mx.jvp(outputs, one, directions)
    _, pulled = mx.vjp(outputs, one, [weight])
    along = sum((p * d).sum().item() for p, d in zip(pulled, directions, strict=True))
    assert (moved * weight).sum().item() == pytest.approx(along, rel=1e-4)


def _first(arrays):
    return [x[0] for x in arrays]


@pytest.mark.parametrize("mode", ["scan", NATIVE])
def test_memory_of_the_gradient_is_linear_in_length(mode):
    def loss(q, k, v, g, t, weight):
        y, _ = gl.gate_loop(q, k, v, gl.Transition.sigmoid(g, t), **WAYS[mode])
        return (y * weight).sum()

    def peak(length):
        xs = [mx.random.normal((1, length, 64)) for _ in range(6)]
        return peak_memory(mx.grad(loss, argnums=(0, 1, 2, 3, 4)), *xs)

    assert peak(16384) < 4.5 * peak(4096)


def test_heads_never_materialise_the_states():
    length, H, K, V = 1024, 1, 128, 128
    xs = [mx.random.normal((1, length, H, K)) for _ in range(5)]
    peak = peak_memory(lambda q, k, v, *a: gl.gate_loop(q, k, v, gl.Transition.sigmoid(*a))[0], *xs)
    one_plane_of_states = 4 * length * H * K * V
    assert peak < 0.5 * one_plane_of_states


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_states_have_the_planes_of_the_transition(is_complex, mode, heads):
    case = random_case(23, 3, heads=heads, is_complex=is_complex, masked=0.3)
    *arrays, h0 = arguments(case)

    def outputs(h0):
        return run(case, [*arrays, h0], mode)

    expected = outputs(mx.concatenate([h0[:, :1], mx.zeros_like(h0[:, 1:])], 1))
    # A missing imaginary plane is zero; one that real gates do not read changes nothing.
    other = h0[:, :1] if is_complex else mx.concatenate([h0, mx.ones_like(h0)], 1)
    for got, want in zip(outputs(other), expected, strict=True):
        assert got.shape == want.shape
        assert mx.array_equal(got, want)
    gradient = mx.grad(lambda h0: sum(x.sum() for x in outputs(h0)))(other)
    assert gradient.shape == other.shape
    assert mx.abs(gradient[:, :1]).sum() > 0
    assert (gradient[:, 1:] == 0).all()


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", ["recurrent", "scan", NATIVE, "auto"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_no_output_depends_on_a_later_step(poison, mode, heads):
    q, k, v, *rest = arguments(random_case(5, 70, heads=heads))
    clean, _ = run(case := random_case(5, 70, heads=heads), [q, k, v, *rest], mode)
    at = (mx.arange(70) == 37).reshape(1, 70, *[1] * (v.ndim - 2))
    for changed in ([q, k, mx.where(at, poison, v)], [q, mx.where(at, poison, k), v]):
        y, _ = run(case, [*changed, *rest], mode)
        assert mx.array_equal(y[:, :37], clean[:, :37])


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("mode", MODES)
def test_only_masked_steps_are_the_identity(mode, heads):
    case = random_case(23, 3, heads=heads, masked=1.0)
    arrays = arguments(case)
    assert mx.array_equal(run(case, arrays, mode)[1], arrays[-1])


@pytest.mark.parametrize("mode", MODES)
def test_masked_outputs_are_zero_even_where_the_state_overflowed(mode):
    q, k, v = (mx.ones((1, 300, 1)) for _ in range(3))
    mask = mx.arange(300)[None] < 299
    y, _ = gl.gate_loop(q, k, v, mx.full((1, 300, 1), 4.0), mask=mask, **WAYS[mode])
    assert y[0, 299, 0].item() == 0


def test_no_keys_give_zeros():
    q, v = mx.zeros((1, 3, 2, 0)), mx.ones((1, 3, 2, 4))
    y, h = gl.gate_loop(q, q, v, mx.zeros((1, 3, 2, 1)))
    assert mx.array_equal(y, mx.zeros_like(v))
    assert h.shape == (1, 1, 2, 0, 4)
