"""Kernels with one fault each: every one is noticed, by its values or by what it does."""

from dataclasses import dataclass, replace

import mlx.core as mx
import pytest
from harness import metal_kernel, recorded
from harness.mutants import mutated

import mlx_gateloop as gl
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, plan

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Mutant:
    """A replacement in one file, of a text that must occur there exactly `count` times."""

    file: str
    old: str
    new: str
    count: int = 1
    length: int = 139  # 3001: long enough to be cut into parts
    masked: bool = False
    reverse: bool = False
    is_complex: bool = True
    fold: bool = False

    @property
    def case(self):
        return self.fold, self.length, self.masked, self.reverse, self.is_complex

    @property
    def factory(self):
        """A kernel of the mutated text."""
        return mutated(self.file, self.old, self.new, self.count)


PARTS = {"length": 3001}
MASK = {"masked": True}
REAL = {"is_complex": False}
FOLD = {"fold": True}
BARRIER = "GL_BARRIER();"
TIMES_PART, TIMES_PIECE = "gl_times<COMPLEX>(GL_PART(A", "gl_times<COMPLEX>(GL_GET"
FIRST_BARRIER = "    GL_BARRIER();\n    {}"
ROUND_BARRIER = "        GL_BARRIER();\n      }"
BEFORE_H = FIRST_BARRIER.format("gl_complex h"), "    gl_complex h"
BEFORE_FOLD = FIRST_BARRIER.format("if (FOLD)"), "    if (FOLD)"
STATES = "states += int64_t(b)", "states += int64_t(0)"
ROUND_FLIP = "p = 1 - p;  //"
TILE_FLIP = "    p = 1 - p;\n"
ROUNDS = "far < S; far *= 2"
MUTANTS = {
    "no barrier before the rounds, forward": Mutant("forward.inc", *BEFORE_H),
    "the same, backward": Mutant("backward.inc", *BEFORE_FOLD),
    "no barrier before the fold, forward": Mutant("forward.inc", *BEFORE_H, **FOLD),
    "the same fold, backward": Mutant("backward.inc", *BEFORE_FOLD, **FOLD),
    "no barrier in a round, forward": Mutant("forward.inc", ROUND_BARRIER, "      }"),
    "no barrier in a round, backward": Mutant("backward.inc", ROUND_BARRIER, "      }"),
    "barrier of some segments": Mutant(
        "forward.inc", BARRIER, "if (seg > 0) { GL_BARRIER(); }", count=2
    ),
    "a round too few, forward": Mutant("forward.inc", ROUNDS, "2 * far < S; far *= 2"),
    "a round too few, backward": Mutant("backward.inc", ROUNDS, "2 * far < S; far *= 2"),
    "rounds that reach one segment": Mutant("forward.inc", ROUNDS, "far < S; far += 1"),
    "barrier that orders nothing": Mutant("prelude.metal", "mem_threadgroup)", "mem_device)"),
    "fast exp": Mutant("prelude.metal", "metal::precise::exp", "metal::exp"),
    "a phase that is not reduced": Mutant("common.inc", "gl_fma(n, -1.57079637f, phase)", "phase"),
    "a quarter turn too few": Mutant("common.inc", "quarters & 2u", "quarters & 0u"),
    "sine for cosine": Mutant("common.inc", "quarters & 1u", "false"),
    "idle lanes return early": Mutant(
        "position.inc",
        "  const int first_step =",
        "  if (channel >= D) return; const int first_step =",
    ),
    "one buffer for a round, forward": Mutant("forward.inc", ROUND_FLIP, "//"),
    "one buffer for a round, backward": Mutant("backward.inc", ROUND_FLIP, "//"),
    "one buffer for a tile, forward": Mutant("forward.inc", TILE_FLIP, ""),
    "one buffer for a tile, backward": Mutant("backward.inc", TILE_FLIP, ""),
    "conj of the adjoint": Mutant("common.inc", "{a.re, -a.im}", "{a.re, a.im}"),
    "conj of a segment": Mutant("backward.inc", "gl_back<COMPLEX>(B,", "gl_times<COMPLEX>(B,"),
    "conj of a part": Mutant("backward.inc", "gl_back<COMPLEX>(GL_PART(A", TIMES_PART, **PARTS),
    "conj of a piece": Mutant("aggregate.inc", "gl_back<COMPLEX>(GL_GET", TIMES_PIECE, **PARTS),
    "order of the pieces": Mutant("aggregate.inc", "ADJOINT ? S - 1 - n : n", "n", **PARTS),
    "no barrier before the pieces are joined": Mutant("aggregate.inc", BARRIER, "", **PARTS),
    "a piece is left out": Mutant("aggregate.inc", "n < S; ++n", "n < S - 1; ++n", **PARTS),
    "a part too many, forward": Mutant("forward.inc", "n < run", "n <= run", **PARTS),
    "a part too many, backward": Mutant("backward.inc", "n > run", "n >= run", **PARTS),
    "parts of the first sequence": Mutant("forward.inc", "n = b * parts", "n = 0", **PARTS),
    "swapped re and im": Mutant(
        "common.inc", "gl_fma(a.im, h.re, gl_fma(a.re", "gl_fma(-a.im, h.re, gl_fma(a.re"
    ),
    "sign of the phase": Mutant(
        "backward.inc", "G.im * by[r].re - G.re * by[r].im", "G.re * by[r].im - G.im * by[r].re"
    ),
    "slope of the sigmoid": Mutant("common.inc", "negative ? 1.0f - rest : rest", "rest"),
    "lanes past the last channel write": Mutant("position.inc", "channel < D ? end : begin", "end"),
    "they read past it": Mutant("position.inc", "channel < D ? channel : D - 1", "channel"),
    "steps past the last are written": Mutant(
        "backward.inc", "      if (start + r < stop) {", "      if (begin < stop) {"
    ),
    "last step is left out": Mutant(
        "forward.inc",
        "      if (start + r < stop) {",
        "      if (start + r < stop - 1) {",
    ),
    "loads past the end": Mutant(
        "forward.inc", "on = start + r < end && GL", "on = start < end && GL"
    ),
    "first step of a tile": Mutant("forward.inc", "tile + seg * R", "tile + seg * R + 1"),
    "too few states saved": Mutant("forward.inc", "start % C == 0", "start % (2 * C) == 0"),
    "the first gate of a segment, forward": Mutant("forward.inc", "? a[0] :", "? gl_one() :"),
    "the same gate, backward": Mutant("backward.inc", "? a[0] :", "? gl_one() :"),
    "states of the first sequence, forward": Mutant("forward.inc", *STATES),
    "the same states, backward": Mutant("backward.inc", *STATES),
    "wrong state taken": Mutant("backward.inc", "(tile / C)", "((tile + S * R - 1) / C)"),
    "state after, not before": Mutant("forward.inc", "GL_GET(1, seg - 1)", "GL_GET(1, seg)"),
    "gradient before, not after": Mutant("backward.inc", "GL_GET(2, seg + 1)", "GL_GET(2, seg)"),
    "every segment takes h0": Mutant(
        "forward.inc", "  if (seg == 0) {\n    carry", "  {\n    carry"
    ),
    "no segment takes dh1": Mutant(
        "backward.inc", "  if (seg == S - 1) {\n    carry", "  if (false) {\n    carry"
    ),
    "the tile's state is lost": Mutant("forward.inc", "carry = GL_GET(1, S - 1)", "carry = h"),
    "the planes of a state change places": Mutant(
        "common.inc", "x[(i) + plane] = (z).im", "x[i] = 0"
    ),
    "the planes of a segment do": Mutant("position.inc", "[p][n][P - 1][s]", "[p][n][0][s]"),
    "real gates have two planes": Mutant("position.inc", "= COMPLEX ? 2 : 1", "= 2", **REAL),
    "real gates read the phase": Mutant(
        "forward.inc", "COMPLEX ? float(second[i]) : 0.0f", "float(second[D + i])", **REAL
    ),
    "index of the reverse": Mutant(
        "position.inc", "REVERSE ? L - 1 : 0", "REVERSE ? L : 0", reverse=True
    ),
    "reverse goes forward": Mutant("position.inc", "REVERSE ? -D : D", "D", reverse=True),
    "mask is not reversed": Mutant(
        "common.inc", "[REVERSE ? -(t) : (t)]", "[t]", reverse=True, **MASK
    ),
    "mask of a gate": Mutant("backward.inc", "on ? turning : 0.0f", "turning", **MASK),
    "mask of the recurrence": Mutant(
        "forward.inc", "on ? float(first[i]) : gl_identity<FORM>()", "float(first[i])", **MASK
    ),
    "mask of the recurrence, backward": Mutant(
        "backward.inc", "on ? float(first[i]) : gl_identity<FORM>()", "float(first[i])", **MASK
    ),
    "identity that is none": Mutant("common.inc", "200.0f", "2.0f", **MASK),
    "gates before instead of after": Mutant(
        "backward.inc", "GL_GET(ROWS - 1, seg", "GL_GET(0, seg"
    ),
    "the fold goes a segment too far, forward": Mutant(
        "forward.inc", "n < seg", "n <= seg", **FOLD
    ),
    "the fold starts late, forward": Mutant("forward.inc", "int n = 1", "int n = 2", **FOLD),
    "the first segment folds nothing": Mutant("forward.inc", " || seg == 0", "", **FOLD),
    "the fold goes a segment too far, backward": Mutant(
        "backward.inc", "n > seg", "n >= seg", **FOLD
    ),
    "the same of h": Mutant("backward.inc", "n < seg", "n <= seg", **FOLD),
    "the last segment folds nothing": Mutant("backward.inc", " || seg == S - 1", "", **FOLD),
    "one buffer for a folded tile, forward": Mutant("forward.inc", TILE_FLIP, "", **FOLD),
    "one buffer for a folded tile, backward": Mutant("backward.inc", TILE_FLIP, "", **FOLD),
    "order of an adjoint part": Mutant(
        "aggregate.inc", "low + high - 1 - (tile + r)", "tile + r", **PARTS
    ),
    "last state of the first part": Mutant("forward.inc", "&& end == L", "&& begin == 0", **PARTS),
    "h0 of the last part": Mutant("backward.inc", "&& begin == 0", "&& end == L", **PARTS),
}


def outputs(operator, length, masked, reverse, is_complex):
    """y, the last state and all gradients of an operator, for one case."""
    shape = (2, length, 37)
    arrays = [mx.random.normal(shape, key=mx.random.key(i)) for i in range(4 + is_complex)]
    arrays[3] = arrays[3] + (6 if length > 1000 else 0)  # parts long, but not forgotten
    arrays.append(mx.random.normal((2, 1 + is_complex, 37), key=mx.random.key(5)))
    mask = mx.random.uniform(shape=shape[:2], key=mx.random.key(6)) < 0.7 if masked else None

    def run(q, k, v, *rest):
        return operator(q, k, v, gl.Transition.sigmoid(*rest[:-1]), rest[-1], mask, reverse)

    cotangents = [arrays[0].sin(), arrays[-1].cos()]
    outputs, gradients = mx.vjp(run, arrays, cotangents)
    return [*outputs, *gradients]


KINDS = ("forward 32", "backward 32")
FOLDED = replace(DEFAULTS["metal"], few=dict.fromkeys(KINDS, (8, True)))


def noticed(factory, fold, *case):
    """The fault found in the kernels of a factory, or None."""

    def observed(*arguments):
        return gpu.gate_loop(Kernels("metal", factory, FOLDED if fold else None), *arguments)

    def plain(q, k, v, a, h0, mask, reverse):
        return gl.gate_loop(q, k, v, a, h0, mask=mask, reverse=reverse, backend="mlx")

    try:
        with recorded() as launches:
            found = outputs(observed, *case)
    except (RuntimeError, UserWarning) as error:  # a gradient that gave way to plain MLX
        return str(error)
    if any(launch.unwritten.get("states") for launch in launches):
        return "states that nobody saved"
    for got, want in zip(found, outputs(plain, *case), strict=True):
        wrong = (got - want).abs().max().item() / want.abs().max().item()
        if not wrong <= TOLERANCE:
            return f"an error of {wrong}"
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_every_fault_is_noticed(name):
    mutant = MUTANTS[name]
    assert noticed(mutant.factory, *mutant.case)


CASES = {mutant.case for mutant in MUTANTS.values()}


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_kernels_themselves_pass(case):
    assert noticed(metal_kernel, *case) is None


def test_long_sequences_are_cut_into_parts():
    assert plan(DEFAULTS["metal"], "forward 32", 2, PARTS["length"], 37).parts > 1


def test_a_text_that_is_gone_is_reported():
    stale = Mutant("forward.inc", "no such text", "")
    with pytest.raises(AssertionError, match=r"forward\.inc has changed"):
        stale.factory("", "")
