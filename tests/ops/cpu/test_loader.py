"""The extension is optional: if it is missing, the reason is reported, and the operator works."""

import subprocess
import sys
from importlib import import_module

import pytest

from mlx_gateloop.ops.cpu import MLX_VERSION as MLX
from mlx_gateloop.ops.cpu import extension, why_missing

CODE = """
import sys, types
info = types.ModuleType("info")
info.MLX_VERSION, info.REASON = {version!r}, {reason!r}
sys.modules["mlx_gateloop._build_info"] = info if {installed} else None
sys.modules["mlx_gateloop.ops.cpu._ext"] = None
import mlx.core as mx
import mlx_gateloop as gl
from mlx_gateloop.ops.cpu import why_missing, extension
x = mx.ones((1, 3, 1))
for _ in range(2):
    y, _ = gl.gate_loop(x, x, x, 0.5 * x)
    assert y.reshape(-1).tolist() == [1, 1.5, 1.75]
    assert extension() is None
print(why_missing())
"""
ANOTHER = f"it was built for MLX 0.0.1, and this is MLX {MLX}"
WARNING = f"mlx_gateloop runs without its C++ extension: {ANOTHER}; see gateloop doctor"


@pytest.mark.parametrize(("version", "reason", "installed", "said"), [
    ("0.0.1", "", True, [ANOTHER, WARNING]),
    ("", "no C++ compiler was found", True, ["no C++ compiler was found"]),
    ("", "", False, ["this is the source of the package, not an installed one"]),
    (MLX, "", True, ["it does not load: import of mlx_gateloop.ops.cpu._ext halted"]),
])  # fmt: skip
def test_the_operator_works_without_the_extension_and_says_why(version, reason, installed, said):
    code = CODE.format(version=version, reason=reason, installed=installed)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = (child.stdout + child.stderr).splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(text) for line, text in zip(lines, said, strict=True))


def test_the_extension_is_there_where_it_was_built():
    built = import_module("mlx_gateloop._build_info")
    if built.REASON:
        pytest.skip(built.REASON)
    assert why_missing() is None
    assert extension() is sys.modules["mlx_gateloop.ops.cpu._ext"]
