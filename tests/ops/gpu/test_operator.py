"""Plans and launches; a GPU that refuses kernels: fewer segments, then plain MLX."""

import warnings
from functools import partial
from math import ceil

import mlx.core as mx
import numpy as np
import pytest
from harness import metal_kernel, recorded
from harness.variants import composing
from helpers import gated
from helpers.reference import normal, random_case

import mlx_gateloop as gl
from mlx_gateloop.ops import backends
from mlx_gateloop.ops.gpu import first_use, heads
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import INTERVAL, Kernels
from mlx_gateloop.ops.gpu.launch_config import CORES, TILE, plan

COMPILER = RuntimeError("[metal::Device] Unable to build metal library\nprogram:3:1: error: no")
TOO_LARGE = ValueError("Thread group size (512) is greater than the maximum allowed threads")
SHARED = RuntimeError("Unable to load kernel\nThreadgroup memory size exceeds the maximum")
UNKNOWN = RuntimeError("an error that nobody has seen")
MEMORY = RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")
max_headed_and_heads = pytest.mark.parametrize("sizes", [(3,), (2, 5)], ids=["max-headed", "heads"])


@pytest.fixture(autouse=True)
def _no_warning_was_given():
    first_use.warn_once.cache_clear()


class Machine:
    """Metal kernels of the harness, some of which are refused; `calls` has what was launched."""

    def __init__(self, refuses=lambda name, segments: None):
        self.refuses, self.calls, self.inputs = refuses, [], []
        self.kernels = Kernels("metal", self.factory)

    def factory(self, name, **text):
        kernel = metal_kernel(name=name, **text)
        name = name.removeprefix("gateloop_")

        def call(*, inputs, template, **options):
            segments = dict(template)["S"]
            if error := self.refuses(name, segments):
                raise error
            self.calls.append((name, segments, tuple(template)))
            self.inputs.append(dict(zip(text["input_names"], inputs, strict=True)))
            return kernel(inputs=inputs, template=template, **options)

        return call

    def operator(self, *arguments, **options):
        return gpu.gate_loop(self.kernels, *arguments, **options)

    def segments(self, name):
        return {segments for called, segments, _ in self.calls if called == name}

    def install(self, monkeypatch):
        monkeypatch.setattr(gpu, "kernels", lambda _: self.kernels)
        only(monkeypatch, "metal")
        return self


def above(limit, name, error):
    return lambda called, segments: error if called == name and segments > limit else None


def only(monkeypatch, gpu=None):
    for name in ("metal", "cuda"):
        why = None if name == gpu else "no such GPU"
        entry = backends.BACKENDS[name]._replace(why_missing=lambda why=why: why)
        monkeypatch.setitem(backends.BACKENDS, name, entry)


def arrays_of(length=40, sizes=(3,)):
    return [normal(2, length, *sizes, key=i) for i in range(5)]


def forward(machine, arrays):
    q, k, v, *gates = arrays
    return machine.operator(q, k, v, gl.Transition.sigmoid(*gates), None, None, False)


def public(q, k, v, *gates, backend="metal", **options):
    return gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates), backend=backend, **options)


def assert_close(found, wanted):
    for got, want in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert mx.allclose(got, want, rtol=1e-5, atol=1e-5)


def check_parts(parts, groups, L, cores, shortest):
    each = ceil(ceil(L / TILE) / parts)  # tiles of a part, as the kernels count them
    assert (parts - 1) * each * TILE < L  # the last part has steps
    assert parts == 1 or each * TILE >= shortest
    assert groups * parts <= max(2 * cores, groups)


@pytest.mark.parametrize("platform", CORES)
@pytest.mark.parametrize(("B", "D"), [(1, 1), (3, 33), (100, 1000)])
@pytest.mark.parametrize("L", [1, 64, 2000, 30001])
def test_plans(platform, B, D, L):
    cores, groups = CORES[platform], B * -(-D // 32)
    cut = plan(CORES[platform], B, L, D)
    check_parts(cut.parts, groups, L, cores, 512)
    assert cut.segments == (8 if groups * cut.parts > cores else 16)
    assert TILE % INTERVAL == 0


@pytest.mark.parametrize("task", ["outputs", "states", "backward"])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("L", [1, 1000, 30001])
@pytest.mark.parametrize(("H", "K", "V"), [(1, 1, 1), (16, 256, 512)])
def test_plans_of_heads(task, is_complex, L, H, K, V):
    cut = heads.plan(CORES["cuda"], task, (1, L, H, K, V), is_complex)
    keys, values = cut.tiles(task, K, V)
    check_parts(cut.parts, H * keys * values, L, CORES["cuda"], 256)


@pytest.mark.parametrize(("name", "limit", "error"), [
    *(("forward", 4, error) for error in (COMPILER, TOO_LARGE, SHARED, UNKNOWN)),
    ("backward", 8, COMPILER), ("heads_forward", 4, TOO_LARGE), ("heads_backward", 4, TOO_LARGE),
], ids=str)  # fmt: skip
def test_a_pass_that_is_refused_is_tried_with_fewer_segments(name, limit, error):
    machine, has_heads = Machine(above(limit, name, error)), name.startswith("heads")
    case = random_case(4, 20, heads=(2, 40, 20)) if has_heads else random_case(4, 139)
    gated.check(machine.operator, case, cancels=has_heads)
    other = "backward" if name.endswith("forward") else "forward"
    assert machine.segments(name) == {limit}
    assert machine.segments("heads_" * has_heads + other) == {8 if has_heads else 16}


def test_parts_go_with_the_segments_of_their_pass():
    machine = Machine(above(4, "aggregate", TOO_LARGE))
    case = random_case(7, 3001, batch=1, heads=(3, 1, 1), masked=0.3, reverse=True)
    gated.check(machine.operator, case, shift=3)
    assert machine.segments("aggregate") == machine.segments("backward") == {4}


@pytest.mark.parametrize(("heads", "options"), [
    ((3, 1, 1), {}), ((3, 1, 1), {"is_complex": False, "masked": 0.3, "reverse": True}),
    ((2, 5, 3), {"masked": 0.3, "reverse": True}), ((2, 5, 3), {"is_complex": False}),
])  # fmt: skip
def test_without_its_kernel_the_gradient_is_that_of_plain_operations(heads, options):
    name = "backward" if heads == (3, 1, 1) else "heads_backward"
    machine = Machine(above(0, name, COMPILER))
    with pytest.warns(UserWarning, match=r"gradient in plain MLX: a metal kernel fails: .*: no"):
        gated.check(machine.operator, random_case(5, 40, heads=heads, **options))
    gated.check(machine.operator, random_case(6, 40, heads=heads, **options), "polar")  # no other
    assert machine.segments(name) == set()


@pytest.mark.parametrize(("complex_a", "complex_x"), [(1j, 1j), (1j, 0), (0, 0)])
def test_nor_is_that_of_the_scan(complex_a, complex_x, monkeypatch):
    Machine(above(0, "backward", COMPILER)).install(monkeypatch)
    x, y, dh = (0.7 * normal(2, 40, 3, key=i) for i in range(3))
    arrays = [x + complex_a * y, y + complex_x * x, x[:, 0] + complex_a * y[:, 0]]

    def run(backend, *arrays):
        return [gl.linear_scan(*arrays, reverse=True, backend=backend)]

    cotangents = [dh + complex_a * x]
    with pytest.warns(UserWarning, match="gradient in plain MLX"):
        ours, theirs = (mx.vjp(partial(run, name), arrays, cotangents) for name in ("metal", "mlx"))
    assert_close([*ours[0], *ours[1]], [*theirs[0], *theirs[1]])


def test_a_refusal_is_remembered_but_not_an_error_that_may_pass():
    left = [MEMORY]
    machine = Machine(lambda *_: left.pop() if left else None)
    with pytest.raises(first_use.KernelError, match="Insufficient Memory"):
        forward(machine, arrays_of())
    forward(machine, arrays_of())
    assert machine.segments("forward") == {16}
    machine = Machine(above(8, "forward", TOO_LARGE))
    forward(machine, arrays_of())
    machine.refuses = lambda *_: None
    forward(machine, arrays_of())
    assert machine.segments("forward") == {8}


def test_kernels_refused_whole_give_way_with_one_warning_or_raise_the_first_reason(monkeypatch):
    def refuses(_, segments):
        return RuntimeError(f"Failed to compile kernel: {segments}\nfile:3:1: error: no {segments}")

    Machine(refuses).install(monkeypatch)
    arrays = arrays_of()
    calls = [
        lambda backend: public(*arrays, backend=backend),
        lambda backend: [gl.linear_scan(*arrays[:2], backend=backend)],
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"a metal kernel fails: file:3:1: error: no 16"):
            call("metal")
    choose = backends.choose
    monkeypatch.setattr(backends, "choose", lambda n: choose("metal" if n == "auto" else n))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call in calls:
            assert_close(call("auto"), call("mlx"))
    assert len(seen) == 1


@pytest.mark.parametrize(("length", "most"), [(40, 1), (3001, 2)])
def test_inference_compiles_its_own_kernels_alone(length, most):
    machine = Machine()
    for _ in range(2):
        forward(machine, [x[:1] for x in arrays_of(length)])
    compiled = {(name, template) for name, _, template in machine.calls}
    assert len(compiled) == len(machine.kernels.compiled) == most
    assert machine.segments("backward") == set()


def test_the_kernel_tried_is_the_one_called():
    """Of half types, the results of several tiles and the gates' of a head are float32."""
    q, k, v, gamma = (mx.ones((1, 3, 1, n), mx.bfloat16) for n in (140, 140, 70, 1))
    machine = Machine()
    run = [q, k, v, gamma], [v, mx.ones((1, 1, 1, 140, 70))]
    mx.eval(mx.vjp(lambda *arrays: forward(machine, arrays), *run))
    assert len({(name, template) for name, _, template in machine.calls}) == 3


@pytest.mark.parametrize(("name", "sizes"), [("forward", (32,)), ("heads_forward", (2, 40))])
def test_a_step_after_a_prompt_is_one_launch_of_its_kernel(name, sizes, monkeypatch):
    machine, arrays = Machine().install(monkeypatch), arrays_of(sizes=sizes)
    h = public(*arrays)[1]
    first = [x[:, :1] for x in arrays]
    mx.eval(h, public(*first, h0=h))  # another plan of heads
    compiled = set(machine.kernels.compiled)
    with recorded() as launches:
        found = public(*first, h0=h)
        mx.eval(found)
    assert_close(found, public(*first, h0=h, backend="mlx"))
    assert machine.kernels.compiled == compiled
    (launch,) = launches
    assert launch.name == f"gateloop_{name}"
    assert launch.read["h0"] == launch.written["h1"] == h.nbytes
    assert launch.written["y"] == first[0].nbytes


def test_long_compilation_is_told_once(capsys, monkeypatch):
    machine, arrays = Machine(), arrays_of()
    monkeypatch.setattr(first_use, "NOTABLE", 1e9)
    forward(machine, arrays)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(first_use, "NOTABLE", machine.kernels.seconds + 1e-9)
    forward(machine, arrays[:4])
    forward(machine, [x.astype(mx.float16) for x in arrays])
    assert capsys.readouterr().err.startswith("mlx_gateloop: MLX compiled 2 GPU kernels in ")


def test_what_a_variant_does_not_read_is_one_small_array():
    machine = Machine()
    wide = [mx.broadcast_to(x[:, :1], x.shape) for x in arrays_of()[:4]]  # MLX would copy them
    mx.grad(lambda q: forward(machine, [q, *wide[1:]])[0].sum())(wide[0])
    for inputs in machine.inputs:
        absent = [inputs[name] for name in ("second", "mask", "dz") if name in inputs]
        assert len(absent) > 1
        assert all(x.shape == (8,) for x in absent)


@max_headed_and_heads
def test_scans_that_are_not_empty_are_launched_alone(sizes, monkeypatch):
    machine, arrays = Machine().install(monkeypatch), arrays_of(6, sizes)
    for mode in ("recurrent", "attention"):
        assert_close(public(*arrays, mode=mode), public(*arrays, mode=mode, backend="mlx"))
    for nothing in (np.s_[:0], np.s_[:, :0], np.s_[..., :0]):
        empty = [x[nothing] for x in arrays]
        assert_close(public(*empty), public(*empty, backend="mlx"))
        assert gl.linear_scan(*empty[:2], backend="metal").shape == empty[0].shape
    assert machine.calls == []


def test_mixed_types_are_computed_in_float32(monkeypatch):
    Machine().install(monkeypatch)
    types = mx.float16, mx.float32, mx.bfloat16, mx.float16, mx.float32
    mixed = [x.astype(dtype) for x, dtype in zip(arrays_of(), types, strict=True)]
    assert_close(public(*mixed), public(*mixed, backend="mlx"))


def test_second_derivatives_say_what_has_them():
    machine, arrays = Machine(), arrays_of()

    def slope(q):
        return mx.grad(lambda q: forward(machine, [q, *arrays[1:]])[0].sum())(q).sum()

    with pytest.raises(NotImplementedError, match="backend='mlx'"):
        mx.grad(slope)(arrays[0])


@max_headed_and_heads
def test_compile_and_checkpoint_trace_both_passes(sizes):
    seen, arrays = [], arrays_of(6, sizes)
    kernels = Kernels("metal", lambda name, **_: composing(lambda **_: seen.append(name)))

    def loss(q, k, v, *gates):
        a = gl.Transition.sigmoid(*gates)
        return gpu.gate_loop(kernels, q, k, v, a, None, None, False)[0].sum()

    for transformed in (
        mx.compile(mx.grad(loss, range(5))),
        mx.grad(mx.checkpoint(loss), range(5)),
    ):
        seen.clear()
        assert [x.shape for x in transformed(*arrays)] == [x.shape for x in arrays]
        of_heads = "heads_" * (len(sizes) > 1)
        assert {f"gateloop_{of_heads}{name}" for name in ("forward", "backward")} == set(seen)


@pytest.mark.parametrize(("length", "sizes"), [
    (2**16, [(2**15,)] * 2), (2**16, [(2**7, 2**8)] * 2),
    (1, [(2**7, 2**8 - 1), (2**7, 2**16 - 64)]),  # states, to the end of the last tile
])  # fmt: skip
def test_sequences_and_states_beyond_31_bits_are_refused(length, sizes):
    q, v = (mx.broadcast_to(mx.zeros(1), (1, length, *size)) for size in sizes)  # takes no memory
    kernels = Kernels("metal", lambda **_: composing(lambda **_: None))
    with pytest.raises(gpu.KernelError, match="31 bits"):
        gpu.gate_loop(kernels, q, q, v, gl.Transition.of(q), None, None, False)


def test_auto_takes_the_gpu_that_is_the_default_device(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: type("Device", (), {"type": mx.gpu}))
    for there in ("metal", "cuda"):
        only(monkeypatch, there)
        assert backends.choose("auto") is backends.BACKENDS[there]
    only(monkeypatch)
    assert backends.choose("auto") is backends.BACKENDS["mlx"]


def test_absence_says_what_is_missing(monkeypatch):
    for name, maker in (("metal", "Apple"), ("cuda", "NVIDIA")):
        monkeypatch.setattr(getattr(mx, name), "is_available", lambda: False)
        monkeypatch.setattr(gpu, "distributions", lambda name: [name] * ("12" in name))
        assert gpu.why_missing(name) == f"MLX finds no {maker} GPU here"
        monkeypatch.setattr(gpu, "distributions", lambda name: [])
        assert ("CUDA build is not installed" in gpu.why_missing(name)) == (name == "cuda")
        monkeypatch.setattr(getattr(mx, name), "is_available", lambda: True)
        on_cpu = mx.default_device().type == mx.cpu
        assert gpu.why_missing(name) == ("MLX's default device is the CPU" if on_cpu else None)
