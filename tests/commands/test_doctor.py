"""The doctor's report: what is installed, why something is absent, and how to install it."""

import ctypes
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_gateloop import _blas
from mlx_gateloop.cli import main
from mlx_gateloop.commands import doctor
from mlx_gateloop.io.machine import blas_in_use
from mlx_gateloop.ops.backends import BACKENDS

NO_COMPILER = "no C++ compiler was found when the package was installed"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has an extension")


def machine(monkeypatch, why_missing=None, built_for=doctor.MLX_VERSION, compiler="c++", **blas):
    """Stand in for the extension, built for some MLX or absent, and for the bridge's state."""
    built = SimpleNamespace(MLX_VERSION=built_for, COMPILER="GNU 99")
    monkeypatch.setattr(doctor, "why_missing", lambda: why_missing)
    monkeypatch.setattr(doctor, "_build_info", lambda: built)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: compiler)
    for name, value in ({"library": "", "reason": "not here"} | blas).items():
        monkeypatch.setattr(_blas, name, value)


def rows(text):
    return dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines())


def test_the_command_prints_every_part_on_one_screen(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 24
    table = rows(text)
    assert table["mlx"] == f"{doctor.MLX_VERSION}, on {mx.default_device()}"
    for name in ("metal", "cuda"):
        reason = BACKENDS[name].why_missing()
        assert table[name] == (f"absent: {reason}" if reason else "present")
    assert table["cpu"].startswith(("present, built with ", "absent: "))
    assert table["BLAS"] == blas_in_use()


def test_all_is_well_or_an_extra_is_incomplete(capsys, monkeypatch):
    machine(monkeypatch)
    assert rows(doctor.report())["cpu"] == "present, built with GNU 99"
    assert "to fix it" not in doctor.report()
    doctor.print_what_is_missing()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(doctor.extras, "installed", lambda name: None if name == "gradio" else "1")
    table = rows(doctor.report())
    assert table["[app]"].startswith("incomplete: gradio: not installed; run: pip")
    assert table["[train]"] == table["[convert]"] == "installed"


AGAIN = "--force-reinstall --no-deps --no-cache-dir "


@linux_only
@pytest.mark.parametrize(("state", "fixes"), [
    ({"why_missing": NO_COMPILER, "built_for": "", "compiler": None}, ["apt install", AGAIN]),
    ({"why_missing": NO_COMPILER, "built_for": ""}, [AGAIN]),
    ({"why_missing": "another", "built_for": "0.0.1"}, ['-m pip install "mlx[cpu]==0.0.1"']),
    ({"why_missing": "it does not load"}, [AGAIN]),
    ({"why_missing": doctor.NOT_INSTALLED}, ["(or run from another directory)"]),
    ({"reason": _blas.DAMAGED}, [AGAIN]),
    ({"reason": _blas.OTHER_NUMPY}, ["--only-binary :all: numpy"]),
])  # fmt: skip
def test_what_is_missing_has_its_fix(monkeypatch, capsys, state, fixes):
    machine(monkeypatch, **state)
    reason = state.get("why_missing", blas_in_use())
    assert reason in rows(doctor.report())["BLAS" if "reason" in state else "cpu"]
    lines = doctor.report().split("to fix it:\n")[1].splitlines()
    assert all(fix in line for fix, line in zip(fixes, lines, strict=True))
    doctor.print_what_is_missing()
    (line,) = capsys.readouterr().out.splitlines()
    assert f"could be faster: {reason}; see" in line


@linux_only
def test_the_blas_in_use(monkeypatch):
    machine(monkeypatch, library="libopenblas.so")
    products = iter([3, 4, 4, 4])
    library = SimpleNamespace(mlx_gateloop_blas_calls=lambda: next(products))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert blas_in_use() == "NumPy's libopenblas.so, through the bridge"
    assert blas_in_use() == "MLX's own (the bridge is open, but this MLX does not use it)"
    off = "MLX_GATELOOP_BLAS=off"
    names = {_blas.OTHER_BLAS: "the one that is loaded globally", off: f"MLX's own ({off})"}
    for reason, name in names.items():
        machine(monkeypatch, reason=reason)
        assert blas_in_use() == name
        assert "to fix it" not in doctor.report()
