"""Launches are cut, transformed and given up; plain MLX stands in for the kernels."""

import warnings

import mlx.core as mx
import pytest

import mlx_gateloop as gl
from mlx_gateloop.ops import backends
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import INTERVAL, Kernels
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, TILE, Plan, plan

SHAPE = (2, 40, 3)


def normal(*shape, key=0):
    return mx.random.normal(shape, key=mx.random.key(key))


ARRAYS = [normal(*SHAPE, key=i) for i in range(5)]
H0 = normal(2, 2, 3, key=9)


def plain_kernel(name, input_names, output_names, **_):
    """A kernel of complex sigmoid gates, without the rules that MLX's own kernels lack."""

    def operator(q, k, v, gamma, theta, h0):
        a = gl.Transition.sigmoid(gamma, theta)
        return gl.gate_loop(q, k, v, a, h0, mode="scan", backend="mlx")

    def call(inputs, output_shapes, output_dtypes, **_):
        x = dict(zip(input_names, inputs, strict=True))
        primals = [x[n] for n in ("q", "k", "v", "first", "second")]
        if name.endswith("forward"):
            y, h1 = operator(*primals, x["h0"])
            states = mx.broadcast_to(x["h0"][:, None], output_shapes[3])
            outputs = [y, mx.zeros(1), h1, states]
        else:
            primals.append(x["states"][:, 0])
            *found, dh0 = mx.vjp(operator, primals, [x["dy"], x["dh1"]])[1]
            outputs = [*found, dh0]
        assert [o.shape for o in outputs] == list(output_shapes)
        assert [o.dtype for o in outputs] == list(output_dtypes)
        return outputs

    return without_rules(call)


def without_rules(call):
    """The call as MLX knows its own kernels: without vjp, jvp and vmap."""

    def run(inputs, **options):
        kernel = mx.custom_function(lambda *arrays: call(arrays, **options))
        for rule in ("vjp", "jvp", "vmap"):
            getattr(kernel, rule)(missing(rule))
        return list(kernel(*inputs))

    return run


def missing(rule):
    def fail(*_):
        raise ValueError(f"no {rule}")

    return fail


@pytest.fixture
def plain(monkeypatch):
    """A machine whose Metal kernels are plain MLX; gives the names of those that were built."""
    built = []

    def factory(name, *args, **options):
        built.append(name)
        return plain_kernel(name, *args, **options)

    machine(monkeypatch, factory)
    return built


def machine(monkeypatch, factory):
    """A machine with Metal kernels from this factory."""
    kernels = Kernels("metal", factory)
    monkeypatch.setattr(gpu, "kernels", lambda _: kernels)
    only(monkeypatch, "metal")
    backends._warn_once.cache_clear()


def only(monkeypatch, gpu=None):
    """A machine with this GPU alone."""
    for name in ("metal", "cuda"):
        why = None if name == gpu else "no such GPU"
        entry = backends.BACKENDS[name]._replace(why_missing=lambda why=why: why)
        monkeypatch.setitem(backends.BACKENDS, name, entry)


def operator(*arrays, backend="metal", **options):
    a = gl.Transition.sigmoid(*arrays[3:5])
    return gl.gate_loop(*arrays[:3], a, *arrays[5:], backend=backend, **options)


def loss(*arrays, backend="metal"):
    y, h = operator(*arrays, backend=backend)
    return y.square().sum() + h.sin().sum()


def gradient(*arrays, backend="metal"):
    everything = tuple(range(len(arrays)))
    return mx.grad(lambda *xs: loss(*xs, backend=backend), everything)(*arrays)


def assert_close(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert mx.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("platform", DEFAULTS)
@pytest.mark.parametrize(("B", "D"), [(1, 1), (3, 33), (100, 1000)])
@pytest.mark.parametrize("L", [1, 64, 2000, 30001])
def test_plans(platform, B, D, L):
    cut, groups = plan(DEFAULTS[platform], "forward 32", B, L, D), B * -(-D // 32)
    assert cut.segments in (8, 16)
    tiles = -(-L // TILE)
    each = -(-tiles // cut.parts)  # tiles of a part, as the kernels count them
    assert (cut.parts - 1) * each < tiles  # the last part has steps
    assert groups * cut.parts <= max(2 * DEFAULTS[platform].cores, groups)
    assert (cut.segments == 8) == (groups * cut.parts > DEFAULTS[platform].cores)
    if groups >= 2 * DEFAULTS[platform].cores:
        assert cut == Plan(8)
    if cut.parts > 1:
        assert each * TILE >= 512
    assert TILE % INTERVAL == 0


def test_kernels_are_built_when_they_are_used_and_once(plain):
    assert plain == []
    operator(*ARRAYS)
    operator(*ARRAYS)
    assert plain == ["gateloop_forward"]
    gradient(*ARRAYS)
    gradient(*ARRAYS)
    assert plain == ["gateloop_forward", "gateloop_backward"]


def test_outputs_and_gradients_go_through(plain):
    arrays = [*ARRAYS, H0]
    assert_close(operator(*arrays), operator(*arrays, backend="mlx"))
    assert_close(gradient(*arrays), gradient(*arrays, backend="mlx"))
    only_state = mx.grad(lambda k: operator(ARRAYS[0], k, *ARRAYS[2:])[1].sum())(ARRAYS[1])
    assert only_state.abs().max() > 0


def test_compile_and_checkpoint(plain):
    arrays = [*ARRAYS, H0]
    want = gradient(*arrays, backend="mlx")
    assert_close(mx.compile(gradient)(*arrays), want)
    saving = mx.checkpoint(lambda *xs: loss(*xs))
    assert_close(mx.grad(saving, tuple(range(6)))(*arrays), want)


@pytest.mark.parametrize("name", ["vmap", "jvp"])
def test_the_transformations_that_kernels_lack_raise(plain, name):
    # MLX asks the kernel, and never a rule of the function around it.
    transformed = {
        "vmap": lambda f: mx.vmap(f)(mx.stack([ARRAYS[0]] * 2)),
        "jvp": lambda f: mx.jvp(f, [ARRAYS[0]], [ARRAYS[0]]),
    }[name]
    with pytest.raises(ValueError, match=f"no {name}"):
        transformed(lambda q: operator(q, *ARRAYS[1:])[0])
    transformed(lambda q: operator(q, *ARRAYS[1:], backend="mlx")[0])


def test_one_step_is_the_recurrent_step(plain):
    arrays = [*(x[:, :1] for x in ARRAYS), H0]
    assert_close(operator(*arrays), operator(*arrays, backend="mlx"))
    assert plain == ["gateloop_forward"]
    assert_close(operator(*arrays, mode="recurrent"), operator(*arrays, backend="mlx"))
    assert plain == ["gateloop_forward"]


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_nothing_is_launched_for_nothing(plain, shape):
    y, h = operator(*[mx.zeros(shape)] * 5)
    assert y.shape == shape
    assert h.shape == (shape[0], 2, shape[2])
    assert gl.linear_scan(mx.zeros(shape), mx.zeros(shape), backend="metal").shape == shape
    assert plain == []


def test_mixed_types_are_computed_in_float32(plain):
    q, k, v, gamma, theta = ARRAYS
    mixed = [q.astype(mx.float16), k, v.astype(mx.bfloat16), gamma.astype(mx.float16), theta]
    y, _ = operator(*mixed)
    assert y.dtype == mx.bfloat16
    assert_close([y], [operator(*mixed, backend="mlx")[0]])


def test_second_derivatives_say_what_has_them(plain):
    with pytest.raises(NotImplementedError, match="backend='mlx'"):
        mx.grad(lambda q: gradient(q, *ARRAYS[1:])[0].sum())(ARRAYS[0])


def broken_kernel(error, names):
    """A factory whose kernels of these names raise the error when they are called."""

    def factory(name, *args, **options):
        def fail(**_):
            raise error

        return fail if name in names else plain_kernel(name, *args, **options)

    return factory


REFUSED = RuntimeError("Unable to build\nprogram:3:1: error: no such thing\nprogram:4: note")
EVERY = ("gateloop_forward", "gateloop_backward", "gateloop_aggregate")


def test_a_kernel_that_does_not_compile_gives_way_with_one_warning(monkeypatch):
    machine(monkeypatch, broken_kernel(REFUSED, EVERY))
    choose = backends.choose
    monkeypatch.setattr(backends, "choose", lambda n: choose("metal" if n == "auto" else n))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = [operator(*ARRAYS, backend="auto")[0], *gradient(*ARRAYS, backend="auto")]
        states = gl.linear_scan(ARRAYS[0], ARRAYS[1])
    (warning,) = seen
    assert str(warning.message).endswith("program:3:1: error: no such thing")
    wanted = [operator(*ARRAYS, backend="mlx")[0], *gradient(*ARRAYS, backend="mlx")]
    assert_close(found, wanted)
    assert_close([states], [gl.linear_scan(ARRAYS[0], ARRAYS[1], backend="mlx")])


@pytest.mark.parametrize("name", ["gateloop_forward", "gateloop_aggregate"])
@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_whichever_kernel_fails_is_found_before_the_first_launch(monkeypatch, name, kind):
    machine(monkeypatch, broken_kernel(kind("too many threads"), [name]))
    length = 4096 if name == "gateloop_aggregate" else 40
    assert (plan(DEFAULTS["metal"], "forward 32", 1, length, 3).parts > 1) == (length > 40)
    q = mx.zeros((1, length, 3))
    with pytest.raises(gpu.KernelError, match="too many threads"):
        operator(q, q, q, q, q)


def test_sequences_beyond_31_bits_are_refused(plain):
    q = mx.broadcast_to(mx.zeros((1, 1, 1)), (1, 2**16, 2**15))  # takes no memory
    with pytest.raises(gpu.KernelError, match="31 bits"):
        operator(q, q, q, q, q)


def test_a_kernel_asked_for_by_name_raises(monkeypatch):
    machine(monkeypatch, broken_kernel(REFUSED, EVERY))
    with pytest.raises(RuntimeError, match=r"a metal kernel fails: .*no such"):
        operator(*ARRAYS)
    with pytest.raises(RuntimeError, match="kernel fails"):
        gl.linear_scan(ARRAYS[0], ARRAYS[1], backend="metal")


def test_auto_takes_the_gpu_that_is_the_default_device(monkeypatch):
    device = type("Device", (), {"type": mx.gpu})
    monkeypatch.setattr(mx, "default_device", lambda: device)
    for there in ("metal", "cuda"):
        only(monkeypatch, there)
        assert backends.choose("auto") is backends.BACKENDS[there]
    only(monkeypatch)
    assert backends.choose("auto") is backends.BACKENDS["mlx"]


def test_absence_says_what_is_missing(monkeypatch):
    for name, maker in (("metal", "Apple"), ("cuda", "NVIDIA")):
        monkeypatch.setattr(getattr(mx, name), "is_available", lambda: False)
        monkeypatch.setattr(gpu, "_is_installed", lambda package: package == "mlx-cuda-12")
        assert gpu.why_missing(name) == f"MLX finds no {maker} GPU here"
        monkeypatch.setattr(gpu, "_is_installed", lambda _: False)
        assert ("CUDA build is not installed" in gpu.why_missing(name)) == (name == "cuda")
        monkeypatch.setattr(getattr(mx, name), "is_available", lambda: True)
        on_cpu = mx.default_device().type == mx.cpu
        assert gpu.why_missing(name) == ("MLX's default device is the CPU" if on_cpu else None)


def test_only_scans_are_launched(plain):
    q, k, v, a = (normal(1, 6, 2, 3, key=i) for i in range(4))
    for mode in ("recurrent", "attention"):
        y, _ = gl.gate_loop(q, k, v, a, mode=mode, backend="metal")
        assert mx.allclose(y, gl.gate_loop(q, k, v, a, mode=mode, backend="mlx")[0])
    assert plain == []
