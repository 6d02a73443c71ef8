"""The rules of the house: which way imports run, and that importing does no work."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlx_gateloop"
INSIDE = ["cli", "commands", "data", "evaluate", "experiments", "figures", "generate", "io"]
INSIDE += ["layers", "lm", "ops", "tokenizer", "trace", "train"]
FORBIDDEN = {
    "ops": [f"mlx_gateloop.{part}" for part in INSIDE if part != "ops"],
    "model/layers.py": [f"mlx_gateloop.{p}" for p in INSIDE if p not in ("ops", "layers")],
    "model/lm.py": [f"mlx_gateloop.{p}" for p in INSIDE if p not in ("ops", "layers", "lm")],
    "watch": [f"mlx_gateloop.{p}" for p in INSIDE if p != "ops"],
    "generate.py": ["mlx_gateloop.train", "mlx_gateloop.data"],
    ".": ["torch", "gradio", "app", "convert"],
}


def imports(file: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize(("part", "forbidden"), FORBIDDEN.items())
def test_imports_run_one_way(part, forbidden):
    path = PACKAGE / part
    for file in [path] if path.is_file() else path.rglob("*.py"):
        if file.parent == PACKAGE / "bench":  # times peers where they are installed
            continue
        for name in imports(file):
            wrong = [f for f in forbidden if name == f or name.startswith(f"{f}.")]
            assert not wrong, f"{file.relative_to(ROOT)} imports {name}"


def test_the_operator_needs_nothing_but_mlx():
    allowed = {"mlx", "mlx_gateloop"} | set(sys.stdlib_module_names)
    for file in (PACKAGE / "ops").rglob("*.py"):
        assert {name.split(".")[0] for name in imports(file)} <= allowed, file


HEAVY = {"mlx_lm", "transformers", "numpy", "matplotlib", "torch", "gradio", "mlx.nn"}


@pytest.mark.parametrize(
    "code",
    ["import mlx_gateloop"]
    + [f"from mlx_gateloop import cli; cli._parser([{name!r}])" for name in ("", "train", "app")],
)
def test_importing_the_package_and_parsing_a_command_is_light(code):
    code += "; import sys; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert HEAVY.isdisjoint(loaded)
