"""The text of a CUDA kernel, as MLX composes it of header, source and arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

METAL_TYPES = {
    mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t", mx.bool_: "bool",
}  # fmt: skip
CUDA_TYPES = METAL_TYPES | {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}


@dataclass(frozen=True)
class Text:
    """A kernel as it is given to `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`."""

    name: str
    input_names: Sequence[str]
    output_names: Sequence[str]
    source: str
    header: str = ""

    def shapes(self):
        return {name for name in self.input_names if f"{name}_shape" in self.source}


def kind(value):
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"


def cuda_text(kernel, inputs, output_dtypes, template, **_):
    """As `mlx_text`, of CUDA: but for the includes that MLX puts before it."""
    text = Text(**kernel)
    name = f"custom_kernel_{text.name}"
    constants = ""
    for key, value in template:
        if kind(value) == "typename":
            name += f"_{METAL_TYPES[value]}"
            constants += f"  using {key} = {CUDA_TYPES[value]};\n"
        else:
            name += f"_{'t' if value else 'f'}" if kind(value) == "bool" else f"_{value}"
            constants += f"  constexpr {kind(value)} {key} = {str(value).lower()};\n"
    lines, shapes = [], text.shapes()
    for input_name, array in zip(text.input_names, inputs, strict=True):
        lines.append(f"    const {CUDA_TYPES[array.dtype]}* {input_name}")
        if input_name in shapes:
            lines.append(f"    const __grid_constant__ Shape {input_name}_shape")
    for output_name, dtype in zip(text.output_names, output_dtypes, strict=True):
        lines.append(f"    {CUDA_TYPES[dtype]}* {output_name}")
    constants += "\n" if constants else ""
    begin = "namespace mlx::core::cu {\n\nnamespace cg = cooperative_groups;\n\n"
    begin += f"__global__ void {name}(\n" + ",\n".join(lines) + ") {\n"
    return f"{text.header}{begin}{constants}{text.source}\n}}\n\n}} // namespace mlx::core::cu\n"
