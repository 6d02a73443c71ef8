"""Count what heads cost on a GPU in MLX operations: `python benchmarks/heads_on_gpu.py`.

Runs nothing: MLX lists the operations of both passes with their shapes. Beside their bytes stand
the least: every input read once, every output written once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from mlx_gateloop.ops import chunked
from mlx_gateloop.tables import markdown_table

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


def passes(
    shape: tuple[int, ...], planes: int
) -> dict[str, tuple[Callable[..., Any], list[mx.array]]]:
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


def main() -> None:
    mx.custom_function = Plain  # type: ignore[misc,assignment]
    chunked.GROUP = chunked.GROUP_ON_GPU
    rows = []
    for shape in SHAPES:
        B, L, H, K, V = shape
        for planes, gates in enumerate(("real", "complex"), 1):
            for name, (function, arrays) in passes(shape, planes).items():
                launches, moved, products = count(function, arrays)
                inputs = (2 + planes) * K + V
                least = 4 * B * L * H * (inputs + V if name == "forward" else 2 * inputs + V)
                figures = f"{launches:,}", f"{moved / 1e6:,.0f}", f"{least / 1e6:,.0f}"
                rows.append([str(shape), gates, name, *figures, f"{products / 1e9:.2f}"])
    titles = ["(B, L, H, K, V)", "gates", "pass", "launches", "MB", "least MB", "GFLOP of products"]
    print(markdown_table(titles, rows))


if __name__ == "__main__":
    main()
