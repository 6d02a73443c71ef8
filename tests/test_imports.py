"""The rules of imports: which rooms import which, no circles, and no work at import."""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.interpreter import python

ROOT = Path(__file__).parent.parent
LEAVES = {"configuration", "errors", "io.files", "io.tables"}
LIBRARY = LEAVES | {"distributed", "generate", "io", "model", "ops", "tokenizer"}
TOOLS = LIBRARY | {"data", "plots", "train", "watch"}
# A package or a module at the root; "" is the root's __init__.
MAY_IMPORT = {
    "ops": set(),
    "model": LEAVES | {"ops"},
    "data": LEAVES | {"model", "ops"},
    "watch": LEAVES | {"model", "ops"},
    "plots": LEAVES | {"model", "ops", "watch"},
    "distributed": LEAVES | {"cli", "no_torch"},
    "train": LIBRARY | {"", "data", "plots", "watch"},
    "bench": TOOLS | {"commands"},
    "experiments": TOOLS | {"bench"},
    "commands": TOOLS | {"", "bench", "cli", "experiments"},
    "cli": LEAVES | {"commands", "distributed"},
    "no_torch": set(),
    "app": TOOLS - {"train"} | {"__main__", "no_torch", "train"},
    "convert": LIBRARY | {"__main__", "commands"},
    "configuration": {"errors"},
    "errors": set(),
    "io.files": {"errors"},
    "io.tables": set(),
    "tokenizer": LEAVES,
    "generate": LEAVES,
    "io": LEAVES | {"_register", "model", "tokenizer"},
    "_register": {"model"},
    "__main__": {"cli", "no_torch"},
    "": {"_register", "io", "model", "ops", "watch"},
}
ONLY_IN = {"torch": {"convert", "bench"}, "gradio": {"app"}}  # bench times installed peers
RELATIVE = {"app", "convert"}  # installed inside the package from folders beside it


def name_of(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    parts = parts if parts[0] == "mlx_gateloop" else ["mlx_gateloop", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FOLDERS = ("mlx_gateloop", "app", "convert")
FILES = {name_of(file): file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}


def room(name: str) -> str:
    parts = f"{name}.".split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in LEAVES else parts[0]


def imports(name: str, nodes: Iterator[ast.AST]) -> set[str]:
    """The modules that these nodes of a module import."""
    package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or room(name) in RELATIVE, f"{name}: relative import"
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            members = {f"{base}.{alias.name}" for alias in node.names}
            found |= members & FILES.keys() or {base}
    return found


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if not typing_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from at_import(node)


def test_every_room_has_a_rule():
    assert {room(name) for name in FILES} == MAY_IMPORT.keys()


@pytest.mark.parametrize("name", FILES)
def test_a_room_imports_what_it_may(name):
    inside = room(name)
    for target in imports(name, ast.walk(ast.parse(FILES[name].read_text()))):
        top = target.split(".")[0]
        assert inside in ONLY_IN.get(top, {inside}), f"{name} imports {target}"
        assert top not in RELATIVE, f"{name} imports {target}: import it relatively"
        if top == "mlx_gateloop" and target != "mlx_gateloop":
            assert room(target) in MAY_IMPORT[inside] | {inside}, f"{name} imports {target}"
        if inside == "ops":
            assert top in {"mlx", "mlx_gateloop"} | sys.stdlib_module_names, f"{name}: {target}"


def test_no_circles():
    trees = {name: ast.parse(file.read_text()) for name, file in FILES.items()}
    graph = {name: imports(name, at_import(tree)) for name, tree in trees.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


HEAVY = {"mlx_lm", "transformers", "numpy", "matplotlib", "torch", "gradio", "mlx.nn", "pydantic"}


@pytest.mark.parametrize(
    "code",
    ["import mlx_gateloop"]
    + [f"from mlx_gateloop import cli; cli._parser([{name!r}])" for name in ("", "train", "app")],
)
def test_importing_the_package_and_parsing_a_command_is_light(code):
    code += "; import sys; print(*sorted(sys.modules))"
    assert HEAVY.isdisjoint(python(code).split())


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_command_that_computes_with_mlx_alone_imports_no_pytorch():
    code = "import sys; from mlx_gateloop.__main__ import main; main(['doctor']); "
    code += "import mlx_lm.utils; print('transformers' in sys.modules, sys.modules['torch'])"
    assert python(code).endswith("True None")


def test_mlx_is_imported_at_first_use_and_names_are_looked_up_once():
    code = "import sys, mlx_gateloop as gl; assert 'mlx.core' not in sys.modules; "
    code += "[getattr(gl, name) for name in gl.__all__]; print(set(gl.__all__) <= vars(gl).keys())"
    assert python(code) == "True"


def test_watch_is_a_module_loaded_at_first_use():
    code = "import sys, mlx_gateloop as gl; assert 'mlx_gateloop.watch' not in sys.modules; "
    code += "print(gl.watch.recording.__name__, type(gl.watch).__name__)"
    assert python(code) == "recording module"
