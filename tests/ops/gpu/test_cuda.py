"""NVIDIA's compiler takes the CUDA kernels, and they fit into a processor."""

import pytest
from harness import instructions, nvrtc, sass
from harness.instructions import PLANS
from harness.variants import HEADS, VARIANTS, launch, launch_heads, texts

from mlx_gateloop.ops.gpu.launch_config import Plan

no_nvrtc, no_sass = nvrtc.absence(), sass.absence()
pytestmark = pytest.mark.skipif(no_nvrtc is not None, reason=f"no compiler for CUDA: {no_nvrtc}")
disassembled = pytest.mark.skipif(no_sass is not None, reason=f"no disassembler: {no_sass}")
SHORT = ("sigmoid", "real")
SPILLED_ONCE = 64  # bytes, by kernels of heads while they read their first state
COMPILED = [("90", Plan(8)), ("80", Plan(8)), ("90", Plan(16))]


def case(is_short, *arguments):
    return pytest.param(*arguments, marks=[] if is_short else pytest.mark.slow)


@pytest.mark.parametrize(("variant", "architecture", "plan"), [
    case(n == 0 and v.id in SHORT, v.values[0], *each)
    for n, each in enumerate(COMPILED)
    for v in VARIANTS
])  # fmt: skip
def test_the_kernels(variant, architecture, plan):
    for _, text in texts("cuda", launch, variant, (2, 100, 40), plan):
        fits(text, architecture)


@pytest.mark.parametrize(("variant", "segments"), [
    case(segments == 16 and v is HEADS[0], v.values[0], segments)
    for segments in (16, 8, 4)
    for v in HEADS
])  # fmt: skip
def test_the_kernels_of_heads(variant, segments):
    found = texts("cuda", launch_heads, variant, segments)
    for _, text in found[:: 4 if variant == HEADS[0].values[0] else 1]:  # the first and last
        fits(text, "90", SPILLED_ONCE)


def fits(text, architecture, spilled=0):
    compiled = nvrtc.compiled(text, f"sm_{architecture}")
    assert compiled.registers <= 128  # the prelude demands it, at the price of what is spilled
    assert compiled.spilled_bytes <= spilled
    assert 0 < compiled.shared_bytes <= 32 * 1024


@disassembled
@pytest.mark.parametrize(
    ("variant", "plan"),
    [case(p is PLANS[0] and v.id in SHORT, v, p) for p in PLANS for v in VARIANTS],
)
def test_no_kernel_takes_more_instructions_than_were_counted(variant, plan):
    kernels = list(instructions.counted(variant, plan))
    for _, tile, _, _ in kernels:
        kinds = {name.split(".")[0] for name in tile}
        assert kinds >= {"LDG"}
        assert not kinds & {"LD", "ST"}  # accesses that may be global or shared
    assert instructions.grown(iter(kernels)) == {}, "if it must be so, `make kernels` counts again"


@disassembled
@pytest.mark.parametrize(
    ("variant", "tasks"),
    [case(True, HEADS[0], ("outputs", "backward")), *(case(False, v, ()) for v in HEADS)],
)
def test_loops_of_heads(variant, tasks):
    kernels = list(instructions.counted_heads(variant, tasks))
    for _, tile, _, _ in kernels:  # nothing is spilled in them, no memory may be of either kind
        assert not {name.split(".")[0] for name in tile} & {"LDL", "STL", "LD", "ST"}
    assert instructions.grown(iter(kernels)) == {}, "if it must be so, `make kernels` counts again"
