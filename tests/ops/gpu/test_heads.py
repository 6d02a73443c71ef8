"""The kernels of heads beside the float64 loops of `reference`: sizes, tiles, parts, gradients."""

from functools import partial

import mlx.core as mx
import pytest
from harness import metal_kernel, recorded
from harness.platforms import METAL, OBSERVED, PLATFORMS, kernels_of
from harness.variants import composing
from helpers import gated
from helpers.reference import as_numpy, error, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.heads import plan
from mlx_gateloop.ops.gpu.heads_kernels import HeadsPlan, launch
from mlx_gateloop.ops.gpu.kernels import Kernels, Variant
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS
from mlx_gateloop.ops.transition import Transition


def slow(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.slow)


def check(platform, *arguments, **options):
    return gated.check(partial(gpu.gate_loop, kernels_of(platform)), *arguments, **options)


@pytest.mark.parametrize("platform", METAL)
@pytest.mark.parametrize(
    ("form", "is_complex", "shared", "masked", "reverse"),
    [
        ("sigmoid", True, False, 0.0, False),
        ("sigmoid", False, True, 0.3, True),
        ("polar", True, True, 0.3, True),
        ("cartesian", True, False, 0.3, False),
        slow("cartesian", False, False, 0.0, True),
    ],
)
def test_gates_masks_and_directions(platform, form, is_complex, shared, masked, reverse):
    options = {"is_complex": is_complex, "one_gate_per_head": shared, "masked": masked}
    case = random_case(4, 70, heads=(2, 5, 3), resets=0.2, reverse=reverse, **options)
    check(platform, case, form)


@pytest.mark.parametrize("platform", PLATFORMS[1::2])
def test_the_other_platform(platform):
    options = {"is_complex": True, "one_gate_per_head": True, "masked": 0.3, "reverse": True}
    check(platform, random_case(4, 70, heads=(2, 5, 3), **options), "sigmoid")


@pytest.mark.parametrize("platform", METAL)
@pytest.mark.parametrize(
    ("dtype", "gate_dtype"), [(mx.float16, mx.float32), slow(mx.bfloat16, None)]
)
def test_half_types(platform, dtype, gate_dtype):
    case = random_case(5, 40, heads=(2, 5, 3), dtype=dtype, is_complex=gate_dtype is None)
    check(platform, case, "sigmoid", dtype, gate_dtype or dtype)


# The first has several tiles of keys and of values, also of the gradient, the second several values
# of a lane, the third two simdgroups with the same keys of a real state.
@pytest.mark.parametrize("platform", METAL)
@pytest.mark.parametrize(
    ("batch", "length", "heads", "is_complex"),
    [
        (1, 9, (1, 140, 70), True),
        (16, 3, (2, 5, 40), True),
        (1, 18, (2, 1, 40), False),
        slow(1, 33, (3, 33, 1), True),
    ],
)
def test_sizes(platform, batch, length, heads, is_complex):
    case = random_case(6, length, batch=batch, heads=heads, is_complex=is_complex)
    check(platform, case, "sigmoid", cancels=True)


@pytest.mark.parametrize("platform", METAL)
@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 2**16),
    length=st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65]),
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    keys=st.sampled_from([1, 3, 8, 31, 32]),
    values=st.sampled_from([1, 5, 16, 17]),
    closed=st.sampled_from([0.0, 0.2]),
)
def test_any_sizes(platform, seed, length, batch, heads, keys, values, closed):
    keys = max(keys, 2 if values == 1 else 1)  # else it is max-headed
    case = random_case(seed, length, batch=batch, heads=(heads, keys, values))
    check(platform, case, "sigmoid", cancels=True, closed=closed, seed=seed)


def test_the_sizes_have_the_tiles_that_they_should():
    tuning = DEFAULTS["metal"]
    assert plan(tuning, "outputs", (1, 9, 1, 140, 70), True).tiles("outputs", 140, 70) == (2, 3)
    assert plan(tuning, "backward", (1, 9, 1, 140, 70), True).tiles("backward", 140, 70) == (5, 2)
    assert plan(tuning, "outputs", (16, 3, 2, 5, 40), True).values == 2
    assert plan(tuning, "backward", (1, 18, 2, 1, 40), False) == HeadsPlan(8, 8)


@pytest.mark.parametrize("task", ["outputs", "states", "backward"])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("L", [1, 1000, 30001])
@pytest.mark.parametrize(("H", "K", "V"), [(1, 1, 1), (16, 256, 512)])
def test_plans(task, is_complex, L, H, K, V):
    tuning = DEFAULTS["cuda"]
    cut = plan(tuning, task, (1, L, H, K, V), is_complex)
    keys, values = cut.tiles(task, K, V)
    tiles = -(-L // 64)
    each = -(-tiles // cut.parts)  # tiles of a part, as the kernels count them
    assert (cut.parts - 1) * each < tiles  # the last part has steps
    assert cut.parts == 1 or each * 64 >= 256
    assert H * keys * values * cut.parts <= max(2 * tuning.cores, H * keys * values)


@pytest.mark.parametrize("platform", METAL)
@pytest.mark.parametrize(("masked", "reverse"), [slow(0.0, False), (0.3, True)])
def test_a_long_sequence_in_parts(platform, masked, reverse):
    length, heads = 770, (1, 3, 2)
    assert plan(DEFAULTS["metal"], "backward", (1, length, *heads), True).parts == 3
    case = random_case(7, length, batch=1, heads=heads, masked=masked, reverse=reverse)
    check(platform, case, "sigmoid", shift=6)


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


def state_arrays(variant, shape, dtype=mx.float32):
    """Ones in the arrays of a variant by name."""
    B, L, H, K, V = shape
    x = dict.fromkeys(("q", "k"), mx.ones((B, L, H, K), dtype))
    x |= dict.fromkeys(("first", "second"), mx.ones((B, L, H, K)))
    x |= dict.fromkeys(("v", "dy"), mx.ones((B, L, H, V), dtype))
    state = mx.ones((B, variant.planes, H, K, V))
    return x | {"h0": state, "dh1": state}


def test_every_array_is_moved_once():
    variant, shape = Variant(0, True), (1, 64, 1, 64, 32)
    x = state_arrays(variant, shape)
    kernels, keys, values, state = OBSERVED["metal"], 4 * 64 * 64, 4 * 64 * 32, 2 * 4 * 64 * 32
    with recorded() as launches:
        mx.eval(launch(kernels, "outputs", variant, HeadsPlan(8), x))
        x |= launch(kernels, "states", variant, HeadsPlan(8), x)
        mx.eval(launch(kernels, "backward", variant, HeadsPlan(8, 4), x))
    outputs, states, backward = (sum(each.read.values()) for each in launches)
    written = [sum(each.written.values()) for each in launches]
    assert outputs == 4 * keys + values + state  # q, k and gates; v; h0
    assert states == 3 * keys + values + state
    # A block of 16 steps reads the state before its 32, and where it is their second half, also
    # what the first half is advanced with; two tiles of keys read values.
    assert backward == 4 * keys + 3 * keys / 2 + 2 * (2 * values + values / 2) + 4 * state + state
    assert written == [values + state, 2 * state, 4 * keys + 2 * values + state]


def test_sixteen_segments_read_the_values_of_their_four_steps():
    variant, shape = Variant(0, False), (1, 16, 1, 128, 32)
    x = state_arrays(variant, shape)
    with recorded() as launches:
        mx.eval(launch(OBSERVED["metal"], "outputs", variant, HeadsPlan(16), x))
    assert launches[0].read["v"] == x["v"].nbytes


def test_one_step_is_one_launch_that_moves_the_state_once():
    variant, shape = Variant(0, False), (1, 1, 2, 40, 40)
    q, k, v, gamma, h0 = (state_arrays(variant, shape)[n] for n in ("q", "k", "v", "first", "h0"))
    kernels = OBSERVED["metal"]
    run = partial(gpu.gate_loop, kernels, q, k, v, Transition.sigmoid(gamma), h0, None, False)
    mx.eval(run())  # the first use tries the kernel
    with recorded() as launches:
        y, h = run()
        mx.eval(y, h)
    (only,) = launches
    assert only.read["h0"] == only.written["h1"] == h.nbytes
    assert only.written["y"] == y.nbytes
    assert only.read["q"] == 2 * q.nbytes  # by each of two tiles of 32 values


def test_a_single_step_with_heads_takes_the_kernel(monkeypatch):
    from mlx_gateloop.ops import backends

    built = []

    def factory(name, **text):
        built.append(name)
        return metal_kernel(name, **text)

    monkeypatch.setattr(gpu, "kernels", lambda _: kernels)
    kernels = Kernels("metal", factory)
    entry = backends.BACKENDS["metal"]._replace(why_missing=lambda: None)
    monkeypatch.setitem(backends.BACKENDS, "metal", entry)
    arrays = [normal(2, 1, 2, n, key=i) for i, n in enumerate((5, 5, 3))]
    a = gl.Transition.sigmoid(normal(2, 1, 2, 1, key=3))
    for got, want in zip(
        gl.gate_loop(*arrays, a, backend="metal"),
        gl.gate_loop(*arrays, a, backend="mlx"),
        strict=True,
    ):
        assert error(got, as_numpy(want)) <= 1e-6
    assert built == ["gateloop_heads_forward"]


def test_compile_and_checkpoint_trace_both_passes():
    seen = []

    def factory(name, **_):
        return composing(lambda **_: seen.append(name))

    kernels = Kernels("metal", factory)
    arrays = [normal(1, 6, 2, n, key=i) for i, n in enumerate((5, 5, 3, 1))]

    def loss(q, k, v, gamma):
        a = Transition.sigmoid(gamma)
        return gpu.gate_loop(kernels, q, k, v, a, None, None, False)[0].sum()

    for transformed in (
        mx.compile(mx.grad(loss, range(4))),
        mx.grad(mx.checkpoint(loss), range(4)),
    ):
        seen.clear()
        found = transformed(*arrays)
        assert [x.shape for x in found] == [x.shape for x in arrays]
        assert {"gateloop_heads_forward", "gateloop_heads_backward"} == set(seen)


@pytest.mark.parametrize(
    ("length", "H", "K", "V"),
    [(2**16, 2**7, 2**8, 2**8), (1, 2**7, 2**12 - 1, 2**12)],  # steps; states, to a tile's end
)
def test_heads_beyond_31_bits_are_refused(length, H, K, V):
    q, v = (mx.broadcast_to(mx.zeros(1), (1, length, H, n)) for n in (K, V))  # takes no memory
    with pytest.raises(gpu.KernelError, match="31 bits"):
        gpu.gate_loop(OBSERVED["metal"], q, q, v, Transition.of(q), None, None, False)
