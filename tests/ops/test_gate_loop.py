"""Every mode, and GPU kernels, against the float64 loop: y, last state and every gradient."""

from functools import partial

import mlx.core as mx
import pytest
from harness.platforms import CUDA_TEXT, PLATFORMS, kernels_of
from helpers import gated
from helpers.cases import first
from helpers.memory import peak_memory
from helpers.reference import as_numpy, error, inputs, needs_native, normal, random_case

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu

WAYS = {
    "recurrent": {"mode": "recurrent"}, "scan": {"mode": "scan", "backend": "mlx"},
    "native": {"mode": "scan", "backend": "cpu"}, "attention": {"mode": "attention"}, "auto": {},
}  # fmt: skip
NATIVE = pytest.param("native", marks=needs_native)
HEADS = {"max-headed": (5, 1, 1), "heads": (2, 3, 4)}
MODES = ["recurrent", "scan", NATIVE, "attention", "auto"]
every_mode = pytest.mark.parametrize("mode", MODES)
every_mode_and_platform = pytest.mark.parametrize("mode", [*MODES, *PLATFORMS])
max_headed_and_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)


def operator(mode):
    if mode in WAYS:
        return partial(gl.gate_loop, **WAYS[mode])
    return partial(gpu.gate_loop, kernels_of(mode), mask=None, reverse=False)


def check(case, mode, form="cartesian", *dtypes, **options):
    tolerances = {"rounding": 2e-6, "by": 4e-6} if mode in WAYS else {}
    gated.check(operator(mode), case, form, *dtypes, **{**tolerances, **options})


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 1000])
@max_headed_and_heads
@every_mode
def test_agrees_with_the_loop(mode, heads, length):
    if mode == "attention":  # O(L^2), and without chunks that a longer text would fill
        length = min(length, 300)
    is_complex = (length % 2 == 0) == (heads == HEADS["heads"])
    check(random_case(length, length, heads=heads, is_complex=is_complex, batch=1), mode)


@pytest.mark.parametrize(
    ("dtype", "gate_dtype"), [(mx.float16, mx.float32), (mx.bfloat16, mx.bfloat16)], ids=str
)
@max_headed_and_heads
@pytest.mark.parametrize("mode", [*MODES, *PLATFORMS, CUDA_TEXT])  # its half types are others
def test_half_precision_is_rounded_only_at_the_edges(mode, heads, dtype, gate_dtype):
    check(random_case(7, 65, heads=heads, dtype=dtype), mode, "sigmoid", dtype, gate_dtype)


@pytest.mark.parametrize(("form", "options"), [
    ("sigmoid", {}), ("polar", {"reverse": True, "masked": 0.3}),
    ("cartesian", {"one_gate_per_head": True, "masked": 0.3}),
    ("sigmoid", {"one_gate_per_head": True, "reverse": True, "is_complex": False, "masked": 0.3}),
    ("cartesian", {"is_complex": False, "reverse": True}),
])  # fmt: skip
@max_headed_and_heads
@every_mode_and_platform
def test_forms_masks_directions_and_shared_gates(mode, heads, form, options):
    check(random_case(3, 139, heads=heads, **options), mode, form, closed=0.2)


@pytest.mark.parametrize(("heads", "shift", "turn"), first(2, [
    ((4, 1, 1), 20, 0), ((1, 3, 2), 8, 0.001), ((4, 1, 1), 8, 0.001), ((4, 1, 1), 8, 1),
    ((1, 3, 2), 20, 0),
]))  # fmt: skip
@pytest.mark.parametrize("mode", ["scan", NATIVE, "attention", *PLATFORMS])
def test_a_memory_of_thousands_of_steps(mode, heads, shift, turn):
    case = random_case(10, 512 if mode == "attention" else 3000, heads=heads, batch=1)
    rounding, by = 2e-5, 1e-4  # of a GPU
    if mode in WAYS:  # without a phase all roundings add up; over five seeds up to 1e-5, 1.3e-5
        rounding, by = (6e-6, 6e-6) if turn else (1.2e-5, 2e-5)
    check(case, mode, "sigmoid", shift=shift, turn=turn, rounding=rounding, by=by)


@every_mode_and_platform
def test_a_reset_forgets_everything_exactly(mode):
    case = random_case(17, 40, resets=0)
    case.a[:, 20] = 0
    q, k, v, a, h0 = inputs(case)
    loud = mx.where(mx.arange(40)[:, None] < 20, 1e6 * k, k)
    y, h = operator(mode)(q, k, v, gl.Transition.of(a), h0)
    y_loud, h_loud = operator(mode)(q, loud, v, gl.Transition.of(a), h0)
    assert mx.array_equal(y[:, 20:], y_loud[:, 20:])
    assert mx.array_equal(h, h_loud)


@pytest.mark.parametrize("form", ["sigmoid", "polar", "cartesian", "real"])
@max_headed_and_heads
@every_mode_and_platform
def test_masked_garbage_reaches_neither_outputs_nor_gradients(mode, heads, form):
    case = random_case(19, 9, heads=heads, masked=0.4)
    mask = mx.array(case.mask.copy())
    live = mask[..., None] if case.max_headed else mask[..., None, None]
    q, k, v, a, h0 = inputs(case)
    clean = [q, k, v, -mx.abs(mx.real(a)), *([] if form == "real" else [mx.imag(a)])]

    def garbage(x):
        return mx.array([mx.nan, mx.inf, -mx.inf])[mx.arange(x.size) % 3].reshape(x.shape)

    def loss(arrays, h0):
        a = gl.Transition("sigmoid" if form == "real" else form, *arrays[3:])
        y, h = operator(mode)(*arrays[:3], a, h0, mask=mask, reverse=form in ("polar", "real"))
        return (y * y).sum() + (h * h).sum()

    gradient = mx.value_and_grad(loss, argnums=(0, 1))
    value, (slopes, by_h0) = gradient([mx.where(live, x, garbage(x)) for x in clean], h0)
    want, (wanted, by_clean_h0) = gradient([mx.where(live, x, 0) for x in clean], h0)
    assert mx.array_equal(value, want)
    for got, slope in zip([*slopes, by_h0], [*wanted, by_clean_h0], strict=True):
        assert mx.array_equal(got, slope)
    for slope in slopes:
        assert mx.array_equal(slope, mx.where(live, slope, 0))


@max_headed_and_heads
@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 3), (2, 3)])
@every_mode
def test_without_a_step_the_state_stays(mode, batch, length, heads):
    case = random_case(23, length, batch=batch, heads=heads, masked=1.0)
    *arrays, h0 = inputs(case)
    y, h = gl.gate_loop(*arrays, h0, mask=mx.array(case.mask), **WAYS[mode])
    assert mx.array_equal(y, mx.zeros_like(arrays[2]))
    assert mx.array_equal(h, h0)


@max_headed_and_heads
@every_mode
def test_transformations(mode, heads):
    if mode == "auto" and mx.default_device().type == mx.gpu:
        pytest.skip("MLX gives kernels on GPUs no vmap and no jvp")
    H, K, V = heads
    sizes = [(H,)] * 5 if K == V == 1 else [(H, n) for n in (K, K, V, K, K)]
    many = [normal(3, 2, 40, *size, key=i) for i, size in enumerate(sizes)]
    one = [x[0] for x in many]

    def outputs(q, k, v, gamma, theta):
        return gl.gate_loop(q, k, v, gl.Transition.sigmoid(gamma, theta), **WAYS[mode])[0]

    def gradient_of(f):
        return mx.grad(lambda *xs: (f(*xs) ** 2).sum(), argnums=(0, 1, 2, 3, 4))

    gradient = gradient_of(outputs)
    y, grads = outputs(*one), gradient(*one)
    assert error(mx.vmap(outputs)(*many)[0], as_numpy(y)) < 1e-6
    mixed = mx.vmap(outputs, in_axes=(None, 0, 0, 0, 0))(one[0], *many[1:])
    assert error(mixed[0], as_numpy(y)) < 1e-6
    assert error(mx.compile(outputs)(*one), as_numpy(y)) < 1e-6
    others = [mx.compile(gradient)(*one), gradient_of(mx.checkpoint(outputs))(*one)]
    others.append([x[0] for x in mx.vmap(gradient)(*many)])
    for other in others:
        for got, want in zip(other, grads, strict=True):
            assert error(got, as_numpy(want)) < 2e-6
    # The jvp along a direction d of y against w is the vjp of w against d.
    directions, weight = [normal(*x.shape, key=2) for x in one], normal(*y.shape, key=3)
    _, (moved,) = mx.jvp(outputs, one, directions)
    _, pulled = mx.vjp(outputs, one, [weight])
    along = sum((p * d).sum().item() for p, d in zip(pulled, directions, strict=True))
    assert (moved * weight).sum().item() == pytest.approx(along, rel=1e-4)


def test_the_gradient_of_the_scan_takes_the_memory_of_few_inputs():
    def loss(q, k, v, g, t, weight):
        y, _ = gl.gate_loop(q, k, v, gl.Transition.sigmoid(g, t), **WAYS["scan"])
        return (y * weight).sum()

    for length in (4096, 16384):
        xs = [mx.random.normal((1, length, 64)) for _ in range(6)]
        assert peak_memory(mx.grad(loss, argnums=(0, 1, 2, 3, 4)), *xs) < 22 * xs[0].nbytes


@max_headed_and_heads
@every_mode
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_states_have_the_planes_of_the_transition(is_complex, mode, heads):
    *arrays, h0 = inputs(random_case(23, 3, heads=heads, is_complex=is_complex))

    def outputs(h0):
        return gl.gate_loop(*arrays, h0, **WAYS[mode])

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


@max_headed_and_heads
@pytest.mark.parametrize("mode", ["recurrent", "scan", "attention", NATIVE, "auto"])
def test_no_output_depends_on_a_later_step(mode, heads):
    q, k, v, *rest = inputs(random_case(5, 70, heads=heads))
    clean, _ = gl.gate_loop(q, k, v, *rest, **WAYS[mode])
    at = (mx.arange(70) == 37).reshape(1, 70, *[1] * (v.ndim - 2))
    for changed in ([q, k, mx.where(at, mx.inf, v)], [q, mx.where(at, mx.nan, k), v]):
        y, _ = gl.gate_loop(*changed, *rest, **WAYS[mode])
        assert mx.array_equal(y[:, :37], clean[:, :37])


@pytest.mark.parametrize("size", [(3,), (1, 3)], ids=HEADS)
@every_mode_and_platform
def test_masked_steps_are_zero_beside_states_and_gradients_that_overflow(mode, size):
    live = mx.arange(150)[None] % 3 != 1
    ones, growth = mx.ones((1, 150, *size)), mx.full((1, 150, *size), 4.0)

    def run(*xs):
        return list(operator(mode)(*xs[:3], gl.Transition.of(xs[3]), None, mask=live))

    state = mx.zeros((1, 1, *size, *size[1:]))
    (y, h), found = mx.vjp(run, [ones, ones, ones, growth], [ones, state])
    assert not mx.isfinite(h).any()
    assert not mx.isfinite(found[1][:, 0]).any()
    is_fused = mode == "native" or mode not in WAYS  # others mask the outputs alone
    for x in (y, *(found if is_fused else ())):
        assert not x[:, 1::3].any()
