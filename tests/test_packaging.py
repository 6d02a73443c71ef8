"""Facts that are written down twice agree."""

import os
import signal
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import requires
from unittest.mock import Mock

import pytest
from helpers.commands import fails
from helpers.interpreter import python
from helpers.scripts import ROOT
from packaging.requirements import Requirement

from mlx_gateloop.cli import main
from mlx_gateloop.commands import doctor
from mlx_gateloop.io import extras

PREFIX = "mlx_gateloop/"


def test_requirements_are_made_from_the_packages_metadata():
    command = [sys.executable, str(ROOT / ".ci" / "requirements.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "requirements.txt").read_text() == made, "run: make requirements"
    core = {"mlx", "mlx-lm", "numpy", "sentencepiece", "gradio", "huggingface-hub"}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert core <= {Requirement(x).name for x in lines if x and not x.startswith("#")}


def test_no_folder_above_the_project_is_searched_for_modules():
    paths = python("import sys; print(*sys.path, sep='\\n')").splitlines()
    assert not {str(parent) for parent in ROOT.parents} & set(paths)


def test_all_is_every_extra_but_torch():
    (line,) = [line for line in requires("mlx-gateloop") or [] if line.startswith("mlx-gateloop[")]
    everything = Requirement(line)
    assert everything.extras == set(extras.missing()) - {"torch"}
    assert str(everything.marker) == 'extra == "all"'


@pytest.mark.parametrize(("command", "absent", "extra"), [
    (["app"], "gradio", "app"), (["train", "--out", "x"], "matplotlib", "train"),
    (["experiment", "recall", "--out", "x"], "pyarrow", "train"),
])  # fmt: skip
def test_a_command_names_the_extra_that_is_missing(monkeypatch, capsys, command, absent, extra):
    monkeypatch.setattr(extras, "installed", lambda name: None if name == absent else "1")
    advice = f'run: pip install "mlx-gateloop[{extra}]"'
    assert fails(capsys, *command) == f"error: {absent}: not installed; {advice}"


def test_a_module_that_is_missing_later_names_its_extra(monkeypatch, capsys):
    missing = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.parquet")
    monkeypatch.setattr(doctor, "report", Mock(side_effect=missing))
    assert 'pip install "mlx-gateloop[train]"' in fails(capsys, "doctor")
    monkeypatch.setattr(doctor, "report", lambda: import_module("no_such_module"))
    with pytest.raises(ModuleNotFoundError):  # a defect of ours keeps its traceback
        main(["doctor"])


def test_a_source_tree_that_is_not_installed_says_so():
    for module in ("app", "convert"):
        assert "pip install -e ." in (extras.advice(f"mlx_gateloop.{module}") or "")


@pytest.mark.slow
def test_a_wheel_made_without_a_compiler_holds_all(tmp_path):
    """`make test-install` installs such a wheel, and runs its commands."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    nowhere = {"CC": str(tmp_path / "cc"), "CXX": str(tmp_path / "cxx")}
    command += ["--disable-pip-version-check", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, env=os.environ | nowhere, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info" not in name}
    source = {
        f"{prefix}{file.relative_to(ROOT)}"
        for folder, prefix in (("mlx_gateloop", ""), ("app", PREFIX), ("convert", PREFIX))
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not {"__pycache__", "src"} & {*file.relative_to(ROOT).parts}
    }
    assert held == source | {f"{PREFIX}_build_info.py"}


def test_make_demo_ends_on_an_interrupt_without_an_error(tmp_path):
    python = tmp_path / "python"
    # Like the app, it takes a moment: make reports a child that ends as make hears of Ctrl-C.
    ends = "kill $!; sleep 1; exit 130"
    python.write_text(f"#!/bin/sh\ntrap '{ends}' INT\necho started\nsleep 60 & wait\n")
    python.chmod(0o755)
    command = ["make", "-C", ROOT, "-o", ".venv/installed", f"BIN={tmp_path}", "demo"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as make:
        assert any(line == b"started\n" for line in make.stdout)
        os.killpg(make.pid, signal.SIGINT)  # as a terminal's Ctrl-C
        assert b"***" not in make.stdout.read()
