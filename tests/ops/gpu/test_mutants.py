"""Kernels with one fault each: every one is noticed, by its values or by what it does."""

from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import pytest
from harness import metal_kernel, recorded
from helpers.reference import normal

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS

DIRECTORY = Path(gpu.__file__).parent
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file, of a text that must occur there exactly `count` times."""

    file: str
    old: str
    new: str
    count: int = 1
    length: int = 139  # with heads 39; 3001, with heads 770, are cut into parts
    masked: bool = False
    is_complex: bool = True
    fold: bool = False

    @property
    def case(self):
        if self.file.startswith("heads"):
            return True, False, 770 if self.length > 139 else 39, True, True
        return False, self.fold, self.length, self.masked, self.is_complex

    def factory(self, header, source, **names):
        """A kernel of the mutated text."""
        text = (DIRECTORY / self.file).read_text()
        assert text.count(self.old) == self.count, f"{self.file} has changed: {self.old}"
        changed = text.replace(self.old, self.new)
        header, source = (part.replace(text, changed) for part in (header, source))
        return metal_kernel(header=header, source=source, **names)


PARTS = {"length": 3001}
BEFORE_H = "    GL_BARRIER();\n    gl_complex h", "    gl_complex h"
ROUND = "        GL_BARRIER();\n      }", "      }"
EARLY = "  const int first_step =", "  if (channel >= D) return; const int first_step ="
SOME = "GL_BARRIER();", "if (seg > 0) { GL_BARRIER(); }"
LOADS = "on = start + r < end && GL", "on = start < end && GL"
UNMASKED = "is_key && GL_UNMASKED(t)", "is_key"
# Faults of values alone are those that the other tests here compare.
MUTANTS = {
    "no barrier before the rounds": Mutant("forward.inc", *BEFORE_H),
    "no barrier before the fold": Mutant("forward.inc", *BEFORE_H, fold=True),
    "no barrier in a round": Mutant("backward.inc", *ROUND),
    "barrier of some segments": Mutant("forward.inc", *SOME, count=2),
    "barrier that orders nothing": Mutant("prelude.metal", "mem_threadgroup)", "mem_device)"),
    "fast exp": Mutant("prelude.metal", "metal::precise::exp", "metal::exp"),
    "idle lanes return early": Mutant("position.inc", *EARLY),
    "one buffer for a round": Mutant("backward.inc", "p = 1 - p;  //", "//"),
    "one buffer for a tile": Mutant("forward.inc", "    p = 1 - p;\n", ""),
    "lanes past the last channel write": Mutant("position.inc", "channel < D ? end : begin", "end"),
    "loads past the end": Mutant("forward.inc", *LOADS),
    "too few states saved": Mutant("forward.inc", "start % C == 0", "start % (2 * C) == 0"),
    "two planes": Mutant("position.inc", "= COMPLEX ? 2 : 1", "= 2", is_complex=False),
    "identity that is none": Mutant("common.inc", "200.0f", "2.0f", masked=True),
    "a part too many": Mutant("forward.inc", "n < run", "n <= run", **PARTS),
    # with heads
    "no barrier after staging": Mutant("heads_forward.inc", "    GL_BARRIER();\n  }\n", "  }\n"),
    "no barrier before the sums": Mutant("heads_backward.inc", "GL_BARRIER();  // the sums", "//"),
    "keys past the last": Mutant("heads_forward.inc", "key + kj < K", "kj < K + 1"),
    "values past the last": Mutant("heads_position.inc", "value + (j) < V", "true"),
    "mask of the gates": Mutant("heads_forward.inc", *UNMASKED),
    "states at others": Mutant("heads_forward.inc", "tile % C == 0", "tile % (2 * C) == 0"),
    "an adjoint part in order": Mutant(
        "heads_forward.inc", "ADJOINT ? begin + end - 1 - passed : passed", "passed", 2, **PARTS
    ),
}


def outputs(operator, heads, length, masked, is_complex):
    """y, the last state and all gradients of an operator, for one case."""
    if heads:
        size, sizes = (2, 2) if length < 770 else (1, 1), (9, 9, 20, 9, 9)
        shapes = [(size[0], length, size[1], n) for n in sizes]
        state = (size[0], 2, size[1], 9, 20)
    else:
        shapes, state = [(2, length, 37)] * (4 + is_complex), (2, 1 + is_complex, 37)
    arrays = [normal(*shape, key=i) for i, shape in enumerate(shapes)]
    arrays[3] = arrays[3] + (6 if length > 700 else 0)  # parts long, but not forgotten
    arrays.append(normal(*state, key=5))
    mask = mx.random.uniform(shape=shapes[0][:2], key=mx.random.key(6)) < 0.7 if masked else None

    def run(q, k, v, *rest):
        return operator(q, k, v, gl.Transition.sigmoid(*rest[:-1]), rest[-1], mask, heads)

    outputs, gradients = mx.vjp(run, arrays, [arrays[2].sin(), arrays[-1].cos()])
    return [*outputs, *gradients]


KINDS = ("forward 32", "backward 32")
FOLDED = replace(DEFAULTS["metal"], few=dict.fromkeys(KINDS, (8, True)))


def noticed(factory, heads, fold, *case):
    """The fault found in the kernels of a factory, or None."""
    kernels = Kernels("metal", factory, FOLDED if fold else None)

    def observed(*arguments):
        return gpu.gate_loop(kernels, *arguments)

    def plain(q, k, v, a, h0, mask, reverse):
        return gl.gate_loop(q, k, v, a, h0, mask=mask, reverse=reverse, backend="mlx")

    try:
        with recorded() as launches:
            found = outputs(observed, heads, *case)
            mx.eval(found)
    except (RuntimeError, UserWarning) as error:  # a gradient that gave way to plain MLX
        return str(error)
    if not heads and any(launch.unwritten.get("states") for launch in launches):
        return "states that nobody saved"
    for got, want in zip(found, outputs(plain, heads, *case), strict=True):
        wrong = (got - want).abs().max().item() / want.abs().max().item()
        if not wrong <= TOLERANCE:
            return f"an error of {wrong}"
    return None


# Each is compiled: the short suite tries every fourth.
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if i % 4 else []) for i, name in enumerate(MUTANTS)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_is_noticed(name):
    mutant = MUTANTS[name]
    assert noticed(mutant.factory, *mutant.case)


@pytest.mark.parametrize("case", sorted({mutant.case for mutant in MUTANTS.values()}))
def test_the_kernels_themselves_pass(case):
    assert noticed(metal_kernel, *case) is None
