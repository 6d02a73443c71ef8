"""Count what heads cost on a GPU: `python benchmarks/heads_on_gpu.py`.

Runs nothing: MLX lists the operations and kernels of both passes with their shapes, of its own
operations and of our kernels. Beside their bytes, each launch's inputs and outputs once, stand the
least: every input of the pass read once, every output written once.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx_gateloop  # noqa: F401  # before MLX, for its BLAS

# isort: split
import mlx.core as mx

from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops import chunked
from mlx_gateloop.ops.gpu import heads
from mlx_gateloop.ops.gpu.kernels import Kernels, Variant
from mlx_gateloop.ops.gpu.launch_config import CORES, Pass

Work = tuple[Callable[..., Any], list[mx.array]]  # a pass, and its arrays
SHAPES = [(1, 2048, 4, 64, 128), (1, 2048, 4, 256, 512), (1, 2048, 16, 64, 64)]
# Operations that make another view of the same memory and launch no kernel.
VIEWS = {
    "Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unflatten",
}  # fmt: skip


class Plain:
    """A stand-in for `mx.custom_function`, which MLX cannot export."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = self.gradient = function

    def __call__(self, *arrays: mx.array) -> Any:
        return self.function(*arrays)

    def vjp(self, gradient: Callable[..., Any]) -> None:
        self.gradient = gradient


def count(function: Callable[..., Any], arrays: Sequence[mx.array]) -> tuple[int, int, int]:
    """Return the launches, the bytes read and written, and the operations of matrix products."""
    launches, moved, products = 0, 0, 0

    def add(event: dict[str, Any]) -> None:
        nonlocal launches, moved, products
        if event["type"] != "primitive" or event["name"] in VIEWS:
            return
        launches += 1
        for _, shape, dtype in event["inputs"] + event["outputs"]:
            moved += math.prod(shape) * dtype.size
        if event["name"] == "Matmul":
            inner = event["inputs"][0][1][-1]
            products += 2 * inner * math.prod(event["outputs"][0][1])

    mx.export_function(add, function, *arrays)
    return launches, moved, products


def passes(shape: tuple[int, ...], planes: int) -> dict[str, Work]:
    """Return both passes and their arrays."""
    B, L, H, K, V = shape
    keys, values = mx.zeros((B, L, H, K)), mx.zeros((B, L, H, V))
    inputs = [keys, keys, values, *[keys] * planes, *[mx.zeros((B, H, K, V))] * planes]
    operator = chunked._differentiable(planes)
    outputs = list(operator(*inputs))
    cut, end = len(inputs), len(inputs) + len(outputs)

    def gradient(*arrays: mx.array) -> Any:
        return operator.gradient(arrays[:cut], arrays[cut:end], arrays[end:])

    return {
        "forward": (operator, inputs),
        "gradient": (gradient, [*inputs, *map(mx.zeros_like, outputs), *outputs]),
    }


def ours(shape: tuple[int, ...], planes: int, name: str) -> Work:
    """Return a pass by our kernels, divided as on an H200, and its arrays."""
    B, L, H, K, V = shape
    kernels = Kernels("metal", _traced, CORES["cuda"])
    keys, values = mx.zeros((B, L, H, K)), mx.zeros((B, L, H, V))
    state = mx.zeros((B, planes, H, K, V))
    x = {"q": keys, "k": keys, "v": values, "first": keys, "second": keys, "h0": state}
    x = {n: array for n, array in x.items() if planes == 2 or n != "second"}
    if name == "gradient":
        x |= {"dy": values, "dh1": state}

    def run(*arrays: mx.array) -> Any:
        by_name = dict(zip(x, arrays, strict=True))
        which: Pass = "forward" if name == "forward" else "backward"
        return list(heads.run(kernels, which, Variant(0, planes == 2), by_name).values())

    return run, list(x.values())


def _traced(**text: Any) -> Callable[..., list[mx.array]]:
    """A kernel that MLX lists on a machine without a GPU."""
    return partial(mx.fast.metal_kernel(**text), stream=mx.gpu)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    mx.custom_function = Plain  # type: ignore[misc,assignment]
    chunked.GROUP = chunked.GROUP_ON_GPU
    heads.accepted = lambda kernels, trial, wanted: wanted  # there is no GPU to try it on
    rows = []
    for shape in SHAPES:
        B, L, H, K, V = shape
        for planes, gates in enumerate(("real", "complex"), 1):
            for name, (function, arrays) in passes(shape, planes).items():
                launches, moved, products = count(function, arrays)
                own, own_moved, _ = count(*ours(shape, planes, name))
                inputs = (2 + planes) * K + V
                least = 4 * B * L * H * (inputs + V if name == "forward" else 2 * inputs + V)
                megabytes = (f"{bytes / 1e6:,.0f}" for bytes in (moved, own_moved, least))
                figures = f"{launches:,}", str(own), *megabytes, f"{products / 1e9:.2f}"
                rows.append([str(shape), gates, name, *figures])
    titles = ["(B, L, H, K, V)", "gates", "pass", "launches, MLX", "ours", "MB, MLX", "ours"]
    titles += ["least", "GFLOP of products"]
    print(markdown_table(titles, rows))


if __name__ == "__main__":
    main()
