"""The text of a CUDA kernel, as MLX composes it of header, source and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

METAL_TYPES = {
    mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t", mx.bool_: "bool",
}  # fmt: skip
CUDA_TYPES = METAL_TYPES | {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}


@dataclass(frozen=True)
class Text:
    """A kernel as it is given to `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`."""

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    source: str
    header: str

    def shapes(self, arrays):
        given = zip(self.inputs, arrays, strict=True)
        return {name for name, array in given if array.ndim and f"{name}_shape" in self.source}


@dataclass(frozen=True)
class Call:
    """The arguments of one call; they decide the types."""

    inputs: Sequence[mx.array]
    output_dtypes: Sequence[mx.Dtype]
    template: Sequence[tuple[str, Any]]


def kind(value):
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"


def instance(call, types):
    values = [types[v] if kind(v) == "typename" else str(int(v)) for _, v in call.template]
    return f"<{', '.join(values)}>" if values else ""


def parameters(call):
    names = ", ".join(f"{kind(value)} {name}" for name, value in call.template)
    return f"template <{names}>\n" if names else ""


def compose_cuda(text, call):
    """The CUDA source, but for the includes that MLX puts before it."""
    name = f"custom_kernel_{text.name}"
    constants = ""
    for key, value in call.template:
        if kind(value) == "typename":
            name += f"_{METAL_TYPES[value]}"
            constants += f"  using {key} = {CUDA_TYPES[value]};\n"
        else:
            name += f"_{'t' if value else 'f'}" if kind(value) == "bool" else f"_{value}"
            constants += f"  constexpr {kind(value)} {key} = {str(value).lower()};\n"
    lines, shapes = [], text.shapes(call.inputs)
    for input_name, array in zip(text.inputs, call.inputs, strict=True):
        lines.append(f"    const {CUDA_TYPES[array.dtype]}* {input_name}")
        if input_name in shapes:
            lines.append(f"    const __grid_constant__ Shape {input_name}_shape")
    for output_name, dtype in zip(text.outputs, call.output_dtypes, strict=True):
        lines.append(f"    {CUDA_TYPES[dtype]}* {output_name}")
    constants += "\n" if constants else ""
    begin = "namespace mlx::core::cu {\n\nnamespace cg = cooperative_groups;\n\n"
    begin += f"__global__ void {name}(\n" + ",\n".join(lines) + ") {\n"
    return f"{text.header}{begin}{constants}{text.source}\n}}\n\n}} // namespace mlx::core::cu\n"
