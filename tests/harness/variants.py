"""Launches of the kernels in their variants, for tests of their text."""

import mlx.core as mx
import pytest

from harness.compose import cuda_text
from harness.mlx_text import mlx_text
from mlx_gateloop.ops.gpu.heads import Trial
from mlx_gateloop.ops.gpu.heads_kernels import TASKS, HeadsPlan
from mlx_gateloop.ops.gpu.kernels import Kernels, Variant
from mlx_gateloop.ops.gpu.launch_config import Plan

MANY = Plan(8)  # where there are many threadgroups
SMALL = (1, 3, 2)  # inputs of fewer than 8 numbers are another kernel on Metal
VARIANTS = [
    pytest.param((Variant(0, True), mx.float32, mx.float32), id="sigmoid"),
    pytest.param((Variant(0, True, 0, True, True), mx.bfloat16, mx.float32), id="masked reverse"),
    pytest.param((Variant(0, False), mx.float16, mx.float16), id="real"),
    pytest.param((Variant(1, True, 0, False, True), mx.float32, mx.float32), id="polar"),
    pytest.param((Variant(2, True, 0, True), mx.float32, mx.float32), id="cartesian"),
    pytest.param((Variant(2, True, 2), mx.float32, mx.float32), id="scan"),
    pytest.param((Variant(2, False, 1), mx.float32, mx.float32), id="real scan"),
]
# Each task with heads, and each of a thread's sizes.
HEADS = [
    pytest.param((Variant(0, True), mx.float32, mx.float32), id="sigmoid"),
    pytest.param((Variant(1, False, 0, True, True), mx.bfloat16, mx.float32), id="real"),
    pytest.param((Variant(2, True, 0, True, True), mx.float16, mx.float16), id="cartesian"),
]


def heads_plans(is_complex, segments):
    """The tasks, with as many numbers of a thread as there may be."""
    backward = HeadsPlan(min(segments, 16 if is_complex else 8), 4 if is_complex else 8)
    return dict.fromkeys(TASKS, HeadsPlan(segments, 2)) | {"backward": backward}


def composing(see):
    """A kernel that shows its call to `see`, and gives zeros."""

    def call(**arguments):
        see(**arguments)
        given = zip(arguments["output_shapes"], arguments["output_dtypes"], strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in given]

    return call


def launch(kernels, case, shape, plan=MANY):
    variant, dtype, gate_dtype = case
    B, _, D = shape
    steps, gates = mx.zeros(shape, dtype), mx.zeros(shape, gate_dtype)
    state = mx.zeros((B, variant.planes, D))
    x = dict.fromkeys(("q", "k", "v", "dy", "dz"), steps) | {"first": gates, "second": gates}
    x |= {"mask": mx.ones(shape[:2], mx.bool_), "h0": state, "dh1": state}
    x |= kernels.max_headed("aggregate", variant, plan, x, adjoint=True)
    states = kernels.max_headed("forward", variant, plan, x)["states"]
    kernels.max_headed("backward", variant, plan, x | {"states": states})


def launch_heads(kernels, case, segments=8):
    variant, *types = case
    for task, plan in heads_plans(variant.is_complex, segments).items():
        Trial(kernels, task, variant, plan, tuple(types))(plan.segments)


def texts(platform, run, *arguments):
    """The names and texts of the kernels that `run` calls."""
    compose, found = {"metal": mlx_text, "cuda": cuda_text}[platform], []

    def factory(**kernel):
        return composing(lambda **call: found.append((kernel["name"], compose(kernel, **call))))

    run(Kernels(platform, factory), *arguments)
    return found
