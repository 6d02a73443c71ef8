"""The rules of imports: which package imports which, no cycles, and no work at import."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec, resolve_name

import pytest
from helpers.interpreter import TORCH, python
from helpers.scripts import ROOT

PARSER = "from mlx_gateloop.commands.parser import make_parser; make_parser"
LEAVES = {"configuration", "errors", "io.extras", "io.files", "io.interrupt"}
LEAVES |= {"io.machine", "io.tables"}
LIBRARY = LEAVES | {"distributed", "family", "generate", "io", "model", "ops", "tokenizer"}
TOOLS = LIBRARY | {"data", "plots", "train", "watch"}
# A package or a module at the root; "" is the root's __init__.
MAY_IMPORT = {
    "": {"_blas", "io", "model", "ops", "train", "watch"},
    **{name: set() for name in ("_blas", "errors", "io.interrupt", "io.tables", "ops")},
    **{name: {"errors"} for name in ("configuration", "io.extras", "io.files")},
    "__main__": {"cli"}, "io.machine": {"", "_blas", "io.extras"}, "model": LEAVES | {"ops"},
    "family": LEAVES | {"model", "ops"}, "tokenizer": LEAVES,
    "generate": LEAVES | {"model", "tokenizer"}, "io": LEAVES | {"model", "tokenizer"},
    "data": LEAVES | {"model", "ops", "tokenizer"},
    "watch": LEAVES | {"io", "model", "ops", "tokenizer"},
    "plots": LEAVES | {"model", "ops", "watch"}, "distributed": LEAVES | {"", "cli", "commands"},
    "train": LIBRARY | {"", "data", "plots", "watch"}, "bench": TOOLS | {""},
    "experiments": TOOLS | {""}, "commands": TOOLS | {"", "_blas", "bench", "experiments"},
    "cli": LEAVES | {"commands", "distributed"}, "app": TOOLS | {"__main__"},
    "convert": LIBRARY | {"", "__main__", "commands"},
}  # fmt: skip
ONLY_IN = {"torch": {"convert"}, "gradio": {"app"}}
RELATIVE = {"app", "convert"}  # installed inside the package from folders beside it


def name_of(file):
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    parts = parts if parts[0] == "mlx_gateloop" else ["mlx_gateloop", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FOLDERS = ("mlx_gateloop", "app", "convert")
FILES = {name_of(file): file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}


def package(name):
    parts = f"{name}.".split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in LEAVES else parts[0]


def imports(name):
    """The imports of a module: at its top, in functions, and for type checkers."""
    inside = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), inside)
            yield from {f"{base}.{alias.name}" for alias in node.names} & FILES.keys() or {base}


def is_allowed(name, target):
    inside, top = package(name), target.split(".")[0]
    if top in RELATIVE:  # relative imports work in both places
        return False
    if top == "mlx_gateloop":
        return package(target) in MAY_IMPORT[inside] | {inside}
    if inside == "ops":
        return top == "mlx" or top in sys.stdlib_module_names
    return inside in ONLY_IN.get(top, {inside})


def test_packages_import_what_they_may_and_not_each_other():
    assert {package(name) for name in FILES} == MAY_IMPORT.keys()
    assert not {(n, target) for n in FILES for target in imports(n) if not is_allowed(n, target)}
    try:
        TopologicalSorter({name: set(imports(name)) for name in FILES}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


HEAVY = {"mlx_lm", "transformers", "numpy", "matplotlib", "torch", "gradio", "mlx", "pydantic"}


@pytest.mark.parametrize("code", ["import mlx_gateloop", *(
    f"{PARSER}([{name!r}])" for name in ("", "train", "app")
)])  # fmt: skip
def test_importing_the_package_and_parsing_a_command_is_light(code):
    code += "; import sys; print(*sorted(sys.modules))"
    assert HEAVY.isdisjoint(python(code).split())


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_training_imports_no_pytorch():
    code = "import sys, mlx_gateloop.train, mlx_gateloop.io; print('torch' in sys.modules)"
    assert python(f"{code}; import torch", PYTHONPATH=TORCH) == "False"


def test_names_are_looked_up_once():
    code = "import mlx_gateloop as gl; print(type(gl.watch).__name__); "
    code += "[getattr(gl, name) for name in gl.__all__]; print(set(gl.__all__) <= vars(gl).keys())"
    assert python(code).split() == ["module", "True"]
