"""A kernel's text as C++ for the CPU: its own header and source, behind parameters of ours."""

import re
from itertools import count

from harness import toolchain
from harness.compose import CUDA_TYPES, METAL_TYPES, kind

# MLX makes a parameter of each position of a thread that the source names.
POSITIONS = {
    "thread_index_in_simdgroup": "uint",
    **dict.fromkeys(("thread_position_in_grid", "thread_position_in_threadgroup"), "uint3"),
    **dict.fromkeys(("threadgroup_position_in_grid", "threadgroups_per_grid"), "uint3"),
}
KEYWORDS = {"metal": "threadgroup", "cuda": "__shared__"}
DECLARATION = r"\b{}\s+([\w:]+(?:<[^;<>]*>)?)\s+(\w+[^;*()=]*);"


def cpu_source(platform, text, inputs, output_dtypes, template, observed):
    """A translation unit that defines `kernel`."""
    types = METAL_TYPES if platform == "metal" else CUDA_TYPES
    formal, actual = [], []

    def add(type_name, name):
        array = f"arrays[{len(actual)}]"
        if observed:
            formal.append(f"gpu::Pointer<{type_name}> {name}")
            actual.append(f"{{&{array}}}")
        else:
            formal.append(f"{type_name}* {name}")
            actual.append(f"({type_name}*){array}.data")

    for name, array in zip(text.input_names, inputs, strict=True):
        add(f"const {types[array.dtype]}", name)
        if name in text.shapes():
            add("const int", f"{name}_shape")
    for name, dtype in zip(text.output_names, output_dtypes, strict=True):
        add(types[dtype], name)
    if platform == "metal":
        named = [name for name in POSITIONS if name in text.source]
        formal += [f"{POSITIONS[name]} {name}" for name in named]
        actual += [f"position.{name}" for name in named]

    declared = ", ".join(f"{kind(value)} {name}" for name, value in template)
    declared = f"template <{declared}>\n" if template else ""
    values = [types[v] if kind(v) == "typename" else str(int(v)) for _, v in template]
    instance = f"<{', '.join(values)}>" if template else ""
    own = re.sub(r"(?m)^\s*#\s*include\s*<metal_\w+>.*$", "", text.header)
    undone = "#undef __global__\n" if platform == "cuda" else ""
    body = (
        f"{own}\n{undone}{declared}void custom_kernel({', '.join(formal)}) {{\n"
        f'#line 1 "{text.name}"\n{text.source}\n}}'
    )
    # orders to the compiler of the GPU, without instructions
    body = re.sub(r'asm\("" : "\+\w"\(\w+\)\);', "", toolchain.preprocess(body))
    body = _shared_memory(body, KEYWORDS[platform], observed)
    return (
        f'#include "{platform}.h"\nnamespace {{\n{body}\n}}\n'
        'extern "C" void kernel(gpu::Array* arrays, const gpu::Position& position) {\n'
        f"  custom_kernel{instance}({', '.join(actual)});\n}}\n"
    )


def _shared_memory(body, keyword, observed):
    """Declarations of a threadgroup's arrays, each turned into a block that its threads share."""
    numbers = count()

    def declare(found):
        type_name, declared = found.group(1), ""
        for name, bounds in re.findall(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:,|$)", found.group(2)):
            sizes = re.findall(r"\[([^\]]*)\]", bounds)
            each = ", ".join(f"size_t({size})" for size in sizes or ["1"])
            block = f'gpu::shared_array<{type_name}, {each}>({next(numbers)}, "{name}")'
            if observed:
                declared += f"auto&& {name} = {block}{'' if sizes else '[0]'}; "
            else:
                declared += f"typedef {type_name} {name}_type {bounds}; "
                declared += f"{name}_type& {name} = *({name}_type*){block}.array->data; "
        return declared

    body = re.sub(DECLARATION.format(keyword), declare, body)
    if left := re.search(rf"\b{keyword}\b[^*&;()]*;", body):
        raise ValueError(f"a declaration that the harness does not read: {left.group(0)}")
    return body
