"""A GPU that refuses some kernels: fewer segments, then plain MLX; each pass for itself."""

from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from harness import metal_kernel, recorded
from helpers import gated
from helpers.reference import random_case

import mlx_gateloop as gl
from mlx_gateloop.ops import backends
from mlx_gateloop.ops.gpu import first_use
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels

COMPILER = RuntimeError("[metal::Device] Unable to build metal library\nprogram:3:1: error: no")
TOO_LARGE = ValueError("Thread group size (512) is greater than the maximum allowed threads")
SHARED = RuntimeError("Unable to load kernel\nThreadgroup memory size exceeds the maximum")
UNKNOWN = RuntimeError("an error that nobody has seen")
MEMORY = RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")
PASSES = ("forward", "backward")


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


def above(limit, name, error):
    """Refuses a pass with more segments than a limit."""
    return lambda called, segments: error if called == name and segments > limit else None


@pytest.mark.parametrize("error", [COMPILER, TOO_LARGE, SHARED, UNKNOWN], ids=str)
@pytest.mark.parametrize(("name", "limit"), [("forward", 4), ("backward", 8)])
def test_a_pass_that_is_refused_is_tried_with_fewer_segments(name, limit, error):
    machine = Machine(above(limit, name, error))
    gated.check(machine.operator, random_case(4, 139, heads=(3, 1, 1)), "sigmoid")
    (other,) = set(PASSES) - {name}
    assert machine.segments(name) == {limit}
    assert machine.segments(other) == {16}


def test_parts_go_with_the_segments_of_their_pass():
    machine = Machine(above(4, "aggregate", TOO_LARGE))
    case = random_case(7, 3001, batch=1, heads=(3, 1, 1), masked=0.3, reverse=True)
    gated.check(machine.operator, case, "sigmoid", shift=3)
    assert machine.segments("aggregate") == machine.segments("backward") == {4}


@pytest.mark.parametrize(("masked", "reverse"), [(0.0, False), (0.3, True)])
@pytest.mark.parametrize("is_complex", [True, False])
def test_without_its_kernel_the_gradient_is_that_of_plain_operations(is_complex, masked, reverse):
    machine = Machine(above(0, "backward", COMPILER))
    options = {"is_complex": is_complex, "masked": masked, "reverse": reverse}
    with pytest.warns(UserWarning, match=r"gradient in plain MLX: a metal kernel fails: .*: no"):
        gated.check(machine.operator, random_case(5, 40, heads=(3, 1, 1), **options), "sigmoid")
    gated.check(machine.operator, random_case(6, 40, heads=(3, 1, 1), **options), "polar")
    assert machine.segments("forward") == {16}
    assert machine.segments("backward") == set()


@pytest.mark.parametrize(("planes_a", "planes_x"), [(2, 2), (2, 1), (1, 1)])
def test_nor_is_that_of_the_scan(planes_a, planes_x):
    def planes(count, *shape):
        return [mx.random.normal(shape, key=mx.random.key(i)) * 0.7 for i in range(count)]

    arrays = [*planes(planes_a, 2, 40, 3), *planes(planes_x, 2, 40, 3), *planes(planes_a, 2, 3)]

    def run(scan, *arrays):
        a, x, h0 = arrays[:planes_a], arrays[planes_a:-planes_a], arrays[-planes_a:]
        return list(scan(a, x, h0, True))

    scans = [partial(gpu.linear_recurrence, Machine(above(0, "backward", COMPILER)).kernels)]
    scans += [backends.BACKENDS["mlx"].scan]
    cotangents = planes(planes_a, 2, 40, 3)
    with pytest.warns(UserWarning, match="gradient in plain MLX"):
        found, wanted = (mx.vjp(partial(run, scan), arrays, cotangents) for scan in scans)
    for got, want in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
        assert mx.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["heads_forward", "heads_backward"])
def test_heads_are_tried_with_fewer_segments(name):
    machine = Machine(above(4, name, TOO_LARGE))
    gated.check(machine.operator, random_case(4, 20, heads=(2, 40, 20)), "sigmoid", cancels=True)
    (other,) = {"heads_forward", "heads_backward"} - {name}
    assert machine.segments(name) == {4}
    assert machine.segments(other) == {8}


@pytest.mark.parametrize("is_complex", [True, False])
def test_without_its_kernel_the_gradient_of_heads_is_that_of_plain_operations(is_complex):
    machine = Machine(above(0, "heads_backward", COMPILER))
    case = random_case(4, 20, heads=(2, 5, 3), is_complex=is_complex, masked=0.3, reverse=True)
    with pytest.warns(UserWarning, match=r"gradient in plain MLX: a metal kernel fails: .*: no"):
        gated.check(machine.operator, case, "sigmoid")
    assert machine.segments("heads_backward") == set()


ARRAYS = [mx.random.normal((2, 40, 3), key=mx.random.key(i)) for i in range(5)]


def forward(machine, arrays=ARRAYS):
    q, k, v, *gates = arrays
    return machine.operator(q, k, v, gl.Transition.sigmoid(*gates), None, None, False)


def test_an_error_that_may_pass_is_not_remembered():
    left = [MEMORY]
    machine = Machine(lambda *_: left.pop() if left else None)
    with pytest.raises(first_use.KernelError, match="Insufficient Memory"):
        forward(machine)
    forward(machine)
    assert machine.segments("forward") == {16}


def test_a_refusal_is_remembered():
    machine = Machine(above(8, "forward", TOO_LARGE))
    forward(machine)
    machine.refuses = lambda *_: None
    forward(machine)
    assert machine.segments("forward") == {8}


def test_a_pass_refused_whole_is_an_error_that_says_the_first_reason():
    refuses = lambda _, segments: RuntimeError(f"Failed to compile kernel: {segments}")  # noqa: E731
    for _ in range(2):
        with pytest.raises(first_use.KernelError, match=r"a metal kernel fails: .*kernel: 16"):
            forward(Machine(refuses))


@pytest.mark.parametrize(("length", "most"), [(40, 1), (3001, 2)])
def test_inference_compiles_its_own_kernels_alone(length, most):
    arrays = [mx.random.normal((1, length, 3), key=mx.random.key(i)) for i in range(5)]
    machine = Machine()
    forward(machine, arrays)
    compiled = {(name, template) for name, _, template in machine.calls}
    assert len(compiled) == len(machine.kernels.compiled) == most
    assert machine.segments("backward") == set()


def test_the_kernel_tried_is_the_one_called():
    """Of half types, the results of several tiles and the gates' of a head are float32."""
    sizes = (140, 140, 70, 1)
    q, k, v, gamma = (mx.ones((1, 3, 1, n), mx.bfloat16) for n in sizes)
    machine = Machine()

    def run(*arrays):
        return machine.operator(*arrays[:3], gl.Transition.sigmoid(arrays[3]), None, None, False)

    mx.eval(mx.vjp(run, [q, k, v, gamma], [v, mx.ones((1, 1, 1, 140, 70))]))
    assert len({(name, template) for name, _, template in machine.calls}) == 3


def test_a_step_after_a_prompt_is_one_launch_of_its_kernel():
    arrays = [mx.random.normal((1, 40, 32), key=mx.random.key(i)) for i in range(5)]
    machine = Machine()
    h = forward(machine, arrays)[1]
    compiled = set(machine.kernels.compiled)
    q, k, v, *gates = (x[:, :1] for x in arrays)
    a = gl.Transition.sigmoid(*gates)
    mx.eval(h)
    with recorded() as launches:
        mx.eval(machine.operator(q, k, v, a, h, None, False))
    assert machine.kernels.compiled == compiled
    (launch,) = launches
    assert launch.name == "gateloop_forward"
    assert launch.read["h0"] == launch.written["h1"] == h.nbytes


def test_long_compilation_is_told_once(capsys, monkeypatch):
    machine = Machine()
    monkeypatch.setattr(first_use, "NOTABLE", 1e9)
    forward(machine)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(first_use, "NOTABLE", machine.kernels.seconds + 1e-9)
    forward(machine, ARRAYS[:4])
    forward(machine, [x.astype(mx.float16) for x in ARRAYS])
    assert capsys.readouterr().err.startswith("mlx_gateloop: MLX compiled 2 GPU kernels in ")


def test_what_a_variant_does_not_read_is_one_small_array():
    machine = Machine()
    wide = [mx.broadcast_to(x[:, :1], x.shape) for x in ARRAYS[:4]]  # MLX would copy them
    mx.grad(lambda q: forward(machine, [q, *wide[1:]])[0].sum())(wide[0])
    for inputs in machine.inputs:
        absent = [inputs[name] for name in ("second", "mask", "dz") if name in inputs]
        assert len(absent) > 1
        assert all(x.shape == (8,) for x in absent)


def test_the_lines_of_the_first_run_run(capsys):
    page = (Path(__file__).parents[3] / "docs" / "first-gpu.md").read_text()
    lines = page.split("```python\n")[1].split("```")[0]
    small = lines.replace("(8, 4096, 1024)", "(1, 8, 4)")
    assert small != lines
    exec(small, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "first",
        "second",
        "third",
    ]
