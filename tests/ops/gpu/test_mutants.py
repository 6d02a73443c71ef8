"""Kernels with one fault each: every one is noticed, by its values or by what it does."""

from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import pytest
from harness import metal_kernel, recorded

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, plan

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
    reverse: bool = False
    is_complex: bool = True
    fold: bool = False

    @property
    def case(self):
        if self.file.startswith("heads"):
            return True, False, 770 if self.length > 139 else 39, True, True, True
        return False, self.fold, self.length, self.masked, self.reverse, self.is_complex

    def factory(self, header, source, **names):
        """A kernel of the mutated text."""
        text = (DIRECTORY / self.file).read_text()
        assert text.count(self.old) == self.count, f"{self.file} has changed: {self.old}"
        changed = text.replace(self.old, self.new)
        header, source = (part.replace(text, changed) for part in (header, source))
        return metal_kernel(header=header, source=source, **names)


PARTS = {"length": 3001}
MASK = {"masked": True}
REAL = {"is_complex": False}
FOLD = {"fold": True}
BARRIER = "GL_BARRIER();"
TIMES_PART = "gl_times<COMPLEX>(GL_PART(A"
BEFORE_H = "    GL_BARRIER();\n    gl_complex h", "    gl_complex h"
ROUND_BARRIER = "        GL_BARRIER();\n      }"
STATES = "states += int64_t(b)", "states += int64_t(0)"
ROUND_FLIP = "p = 1 - p;  //"
TILE_FLIP = "    p = 1 - p;\n"
ROUNDS = "far < S; far *= 2"
MUTANTS = {
    "no barrier before the rounds, forward": Mutant("forward.inc", *BEFORE_H),
    "no barrier before the fold, forward": Mutant("forward.inc", *BEFORE_H, **FOLD),
    "no barrier in a round, backward": Mutant("backward.inc", ROUND_BARRIER, "      }"),
    "barrier of some segments": Mutant(
        "forward.inc", BARRIER, "if (seg > 0) { GL_BARRIER(); }", count=2
    ),
    "a round too few, forward": Mutant("forward.inc", ROUNDS, "2 * far < S; far *= 2"),
    "barrier that orders nothing": Mutant("prelude.metal", "mem_threadgroup)", "mem_device)"),
    "fast exp": Mutant("prelude.metal", "metal::precise::exp", "metal::exp"),
    "a phase that is not reduced": Mutant("common.inc", "gl_fma(n, -1.57079637f, phase)", "phase"),
    "sine for cosine": Mutant("common.inc", "quarters & 1u", "false"),
    "idle lanes return early": Mutant(
        "position.inc",
        "  const int first_step =",
        "  if (channel >= D) return; const int first_step =",
    ),
    "one buffer for a round, backward": Mutant("backward.inc", ROUND_FLIP, "//"),
    "one buffer for a tile, forward": Mutant("forward.inc", TILE_FLIP, ""),
    "conj of the adjoint": Mutant("common.inc", "{a.re, -a.im}", "{a.re, a.im}"),
    "conj of a part": Mutant("backward.inc", "gl_back<COMPLEX>(GL_PART(A", TIMES_PART, **PARTS),
    "order of the pieces": Mutant("aggregate.inc", "ADJOINT ? S - 1 - n : n", "n", **PARTS),
    "a part too many, forward": Mutant("forward.inc", "n < run", "n <= run", **PARTS),
    "sign of the phase": Mutant(
        "backward.inc", "G.im * by[r].re - G.re * by[r].im", "G.re * by[r].im - G.im * by[r].re"
    ),
    "slope of the sigmoid": Mutant("common.inc", "negative ? 1.0f - rest : rest", "rest"),
    "lanes past the last channel write": Mutant("position.inc", "channel < D ? end : begin", "end"),
    "loads past the end": Mutant(
        "forward.inc", "on = start + r < end && GL", "on = start < end && GL"
    ),
    "too few states saved": Mutant("forward.inc", "start % C == 0", "start % (2 * C) == 0"),
    "the same states, backward": Mutant("backward.inc", *STATES),
    "state after, not before": Mutant("forward.inc", "GL_GET(1, seg - 1)", "GL_GET(1, seg)"),
    "no segment takes dh1": Mutant(
        "backward.inc", "  if (seg == S - 1) {\n    carry", "  if (false) {\n    carry"
    ),
    "real gates have two planes": Mutant("position.inc", "= COMPLEX ? 2 : 1", "= 2", **REAL),
    "index of the reverse": Mutant(
        "position.inc", "REVERSE ? L - 1 : 0", "REVERSE ? L : 0", reverse=True
    ),
    "mask of a gate": Mutant("backward.inc", "on ? turning : 0.0f", "turning", **MASK),
    "identity that is none": Mutant("common.inc", "200.0f", "2.0f", **MASK),
    "the fold goes a segment too far, backward": Mutant(
        "backward.inc", "n > seg", "n >= seg", **FOLD
    ),
    "order of an adjoint part": Mutant(
        "aggregate.inc", "low + high - 1 - (tile + r)", "tile + r", **PARTS
    ),
    "last state of the first part": Mutant("forward.inc", "&& end == L", "&& begin == 0", **PARTS),
    "h0 of the last part": Mutant("backward.inc", "&& begin == 0", "&& end == L", **PARTS),
    # with heads
    "heads: no barrier after staging": Mutant(
        "heads_forward.inc", "    GL_BARRIER();\n  }\n", "  }\n"
    ),
    "heads: keys past the last": Mutant("heads_forward.inc", "key + kj < K", "kj < K + 1"),
    "heads: values past the last": Mutant("heads_position.inc", "value + (j) < V", "true"),
    "heads: mask of the gates": Mutant("heads_forward.inc", "is_key && GL_UNMASKED(t)", "is_key"),
    "heads: states at every other place": Mutant(
        "heads_forward.inc", "tile % C == 0", "tile % (2 * C) == 0"
    ),
    "heads: a part too many": Mutant(
        "heads_forward.inc", "before < b * parts + part", "before <= b * parts + part", **PARTS
    ),
    "heads: reverse goes forward": Mutant("heads_position.inc", "REVERSE ? -H : H", "H"),
    "heads: an adjoint part in order": Mutant(
        "heads_forward.inc",
        "ADJOINT ? begin + end - 1 - passed : passed",
        "passed",
        count=2,
        **PARTS,
    ),
    "heads: no barrier before the sums, backward": Mutant(
        "heads_backward.inc", "GL_BARRIER();  // the sums", "// the"
    ),
    "heads: conj of the gate": Mutant(
        "heads_backward.inc", "gl_back<COMPLEX>(GL_A", "gl_times<COMPLEX>(GL_A"
    ),
    "heads: lanes in another order": Mutant("heads.inc", "odd ? odd_sum", "!odd ? odd_sum"),
    "heads: simdgroups with the same keys": Mutant(
        "heads_backward.inc", "i = 1; i < BESIDE", "i = 2; i < BESIDE"
    ),
}


def outputs(operator, heads, length, masked, reverse, is_complex):
    """y, the last state and all gradients of an operator, for one case."""
    if heads:
        size, sizes = (2, 2) if length < 770 else (1, 1), (9, 9, 20, 9, 9)
        shapes = [(size[0], length, size[1], n) for n in sizes]
        state = (size[0], 2, size[1], 9, 20)
    else:
        shapes, state = [(2, length, 37)] * (4 + is_complex), (2, 1 + is_complex, 37)
    arrays = [mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes)]
    arrays[3] = arrays[3] + (6 if length > 700 else 0)  # parts long, but not forgotten
    arrays.append(mx.random.normal(state, key=mx.random.key(5)))
    mask = mx.random.uniform(shape=shapes[0][:2], key=mx.random.key(6)) < 0.7 if masked else None

    def run(q, k, v, *rest):
        return operator(q, k, v, gl.Transition.sigmoid(*rest[:-1]), rest[-1], mask, reverse)

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


def test_long_sequences_are_cut_into_parts():
    assert plan(DEFAULTS["metal"], "forward 32", 2, PARTS["length"], 37).parts > 1
