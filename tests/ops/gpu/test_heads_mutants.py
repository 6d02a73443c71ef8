"""Kernels of heads with one fault each: every one is noticed, by its values or by what it does."""

from dataclasses import dataclass

import mlx.core as mx
import pytest
from harness import metal_kernel
from harness.mutants import mutated

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels

TOLERANCE = 1e-5
FORWARD, BACKWARD = "heads_forward.inc", "heads_backward.inc"
BARRIER = "GL_BARRIER();"


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file, of a text that must occur there exactly `count` times.

    Without `gradient` only the forward pass is run; 770 steps are cut into parts.
    """

    file: str
    old: str
    new: str
    count: int = 1
    length: int = 39
    gradient: bool = False


def forward(*arguments, **options):
    return Mutant(FORWARD, *arguments, **options)


def backward(*arguments, **options):
    return Mutant(BACKWARD, *arguments, **options, gradient=True)


PARTS = {"length": 770}
MUTANTS = {
    "no barrier after staging": forward("    GL_BARRIER();\n  }\n", "  }\n"),
    "no barrier before the sums": forward("GL_BARRIER();  // the sums", "// the sums"),
    "a segment is not summed": forward("n = 1; n < S; ++n) sum", "n = 2; n < S; ++n) sum"),
    "keys past the last": forward("key + kj < K", "kj < K + 1"),
    "values past the last": Mutant("heads_position.inc", "value + (j) < V", "true"),
    "mask of the gates": forward("is_key && GL_UNMASKED(t)", "is_key"),
    "states at every other place": forward("tile % C == 0", "tile % (2 * C) == 0", gradient=True),
    "the state of another sequence": Mutant(
        "heads_position.inc", "int64_t(n) * P * plane", "int64_t(n) * plane"
    ),
    "a part too many": forward("before < b * parts + part", "before <= b * parts + part", **PARTS),
    "product of the last tile": forward("< KEYS)\n        for", "< 1)\n        for", **PARTS),
    "reverse goes forward": Mutant("heads_position.inc", "REVERSE ? -H : H", "H"),
    "an adjoint part in order": forward(
        "ADJOINT ? begin + end - 1 - passed : passed", "passed", count=2, gradient=True, **PARTS
    ),
    "conj of an adjoint part": backward(
        "gl_back<COMPLEX>(GL_PROD", "gl_times<COMPLEX>(GL_PROD", **PARTS
    ),
    "no barrier before the sums, backward": backward("GL_BARRIER();  // the sums", "// the"),
    "no barrier after them": backward("GL_BARRIER();  // they are read", ""),
    "no barrier between blocks": backward("GL_BARRIER();  // the steps'", "// the steps'"),
    "state after, not before": backward("u = before[r][j]", "u = before[r + 1][j]"),
    "conj of the adjoint": backward("gl_back<COMPLEX>(a, g)", "gl_times<COMPLEX>(a, g)"),
    "conj of the gate": backward("gl_back<COMPLEX>(GL_A", "gl_times<COMPLEX>(GL_A"),
    "slope of the gate": backward("slope * along.re", "along.re"),
    "lanes in another order": Mutant("heads.inc", "odd ? odd_sum", "!odd ? odd_sum", gradient=True),
    "simdgroups with the same keys": backward("i = 1; i < BESIDE", "i = 2; i < BESIDE"),
}  # fmt: skip


SLOW = {
    "a segment is not summed",
    "keys past the last",
    "mask of the gates",
    "product of the last tile",
    "conj of the gate",
    "simdgroups with the same keys",
}
CASES = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in MUTANTS]


def outputs(operator, length, gradient):
    """y, the last state and all gradients of an operator, for one case."""
    sizes, (B, H) = (9, 9, 20, 9, 9), (2, 2) if length < 100 else (1, 1)
    arrays = [
        mx.random.normal((B, length, H, n), key=mx.random.key(i)) for i, n in enumerate(sizes)
    ]
    arrays[3] = arrays[3] + (6 if length > 100 else 0)  # parts long, but not forgotten
    arrays.append(mx.random.normal((B, 2, H, 9, 20), key=mx.random.key(5)))
    mask = mx.random.uniform(shape=(B, length), key=mx.random.key(6)) < 0.7

    def run(q, k, v, *rest):
        return operator(q, k, v, gl.Transition.sigmoid(*rest[:-1]), rest[-1], mask, True)

    if not gradient:
        return run(*arrays)
    outputs, gradients = mx.vjp(run, arrays, [arrays[2].sin(), arrays[-1].cos()])
    return [*outputs, *gradients]


def noticed(factory, *case):
    """The fault found in the kernels of a factory, or None."""

    def observed(*arguments):
        return gpu.gate_loop(Kernels("metal", factory), *arguments)

    def plain(q, k, v, a, h0, mask, reverse):
        return gl.gate_loop(q, k, v, a, h0, mask=mask, reverse=reverse, backend="mlx")

    try:
        found = outputs(observed, *case)
        mx.eval(found)
    except (RuntimeError, UserWarning) as error:  # a gradient that gave way to plain MLX
        return str(error)
    for got, want in zip(found, outputs(plain, *case), strict=True):
        wrong = (got - want).abs().max().item() / want.abs().max().item()
        if not wrong <= TOLERANCE:
            return f"an error of {wrong}"
    return None


@pytest.mark.parametrize("name", CASES)
def test_every_fault_is_noticed(name):
    mutant = MUTANTS[name]
    factory = mutated(mutant.file, mutant.old, mutant.new, mutant.count)
    assert noticed(factory, mutant.length, mutant.gradient)


@pytest.mark.parametrize(("length", "gradient"), [(39, True), (770, True)])
def test_the_kernels_themselves_pass(length, gradient):
    assert noticed(metal_kernel, length, gradient) is None
