"""The text that MLX composes of a kernel's header, source and arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

METAL_TYPES = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.complex64: "complex64_t",
    mx.bool_: "bool",
    **{getattr(mx, name): f"{name}_t" for name in ("int8", "int16", "int32", "int64")},
    **{getattr(mx, name): f"{name}_t" for name in ("uint8", "uint16", "uint32", "uint64")},
}
CUDA_TYPES = METAL_TYPES | {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
# MLX makes a parameter of each that the source names; anywhere, a comment will do.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}
CONSTANT_BELOW = 8  # numbers: a smaller input is in Metal's constant memory
SHAPE_TYPES = {"shape": "int", "strides": "int64_t", "ndim": "int"}
CUDA_SHAPE_TYPES = {"shape": "Shape", "strides": "Strides", "ndim": "int"}


@dataclass(frozen=True)
class Text:
    """A kernel as it is given to `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`."""

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    source: str
    header: str
    atomic: bool

    def shape_names(self, name: str, array: mx.array) -> list[str]:
        """Those of shape, strides and ndim of an input that the source asks for."""
        return [what for what in SHAPE_TYPES if array.ndim and f"{name}_{what}" in self.source]

    def attributes(self) -> list[str]:
        """The positions of a Metal thread that the source asks for."""
        return [name for name in ATTRIBUTES if name in self.source]


@dataclass(frozen=True)
class Call:
    """The arguments of one call; they decide the types."""

    inputs: Sequence[mx.array]
    output_dtypes: Sequence[mx.Dtype]
    template: Sequence[tuple[str, Any]]


def kind(value: Any) -> str:
    """The kind of a template argument."""
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"


def instance(call: Call, types: dict[mx.Dtype, str]) -> str:
    """The arguments of the template in C++."""
    values = [types[v] if kind(v) == "typename" else str(int(v)) for _, v in call.template]
    return f"<{', '.join(values)}>" if values else ""


def parameters(call: Call) -> str:
    """The parameters of the template in C++."""
    names = ", ".join(f"{kind(value)} {name}" for name, value in call.template)
    return f"template <{names}>\n" if names else ""


def compose_metal(text: Text, call: Call) -> str:
    """The Metal source, byte for byte."""
    buffers: list[str] = []
    name = f"custom_kernel_{text.name}"
    arguments = instance(call, METAL_TYPES)
    if arguments:
        name += "_" + re.sub("[<-]|, ", "_", arguments.removesuffix(">"))
    for input_name, array in zip(text.inputs, call.inputs, strict=True):
        type_name, small = METAL_TYPES[array.dtype], array.size < CONSTANT_BELOW
        name += f"_{type_name}{'s' if array.ndim == 0 else 'c' if small else ''}"
        space, mark = "constant" if small else "device", "&" if array.ndim == 0 else "*"
        buffers.append(f"const {space} {type_name}{mark} {input_name}")
        for what in text.shape_names(input_name, array):
            mark = "&" if what == "ndim" else "*"
            buffers.append(f"const constant {SHAPE_TYPES[what]}{mark} {input_name}_{what}")
    for output_name, dtype in zip(text.outputs, call.output_dtypes, strict=True):
        type_name = METAL_TYPES[dtype]
        name += f"_{type_name}"
        buffers.append(
            f"device {f'atomic<{type_name}>' if text.atomic else type_name}* {output_name}"
        )
    lines = [f"  {buffer} [[buffer({i})]]" for i, buffer in enumerate(buffers)]
    lines += [f"  {ATTRIBUTES[a]} {a} [[{a}]]" for a in text.attributes()]
    composed = f"{text.header}{parameters(call)}[[kernel]] void {name}(\n"
    composed += ",\n".join(lines) + ") {\n" + text.source + "\n}\n"
    if arguments:
        whole = f"{name}{arguments}"
        composed += f'\ntemplate [[host_name("{name}")]] [[kernel]] decltype({whole}) {whole};\n'
    return composed


def compose_cuda(text: Text, call: Call) -> str:
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
    lines: list[str] = []
    for input_name, array in zip(text.inputs, call.inputs, strict=True):
        lines.append(f"    const {CUDA_TYPES[array.dtype]}* {input_name}")
        for what in text.shape_names(input_name, array):
            lines.append(
                f"    const __grid_constant__ {CUDA_SHAPE_TYPES[what]} {input_name}_{what}"
            )
    for output_name, dtype in zip(text.outputs, call.output_dtypes, strict=True):
        lines.append(f"    {CUDA_TYPES[dtype]}* {output_name}")
    constants += "\n" if constants else ""
    begin = "namespace mlx::core::cu {\n\nnamespace cg = cooperative_groups;\n\n"
    begin += f"__global__ void {name}(\n" + ",\n".join(lines) + ") {\n"
    return f"{text.header}{begin}{constants}{text.source}\n}}\n\n}} // namespace mlx::core::cu\n"
