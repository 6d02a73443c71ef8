"""The paths of the commands that build the embedded models."""

import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.embedded_models.arguments import check_own, errors_in_one_line, paths
from mlx_gateloop.errors import InputError


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_paths_come_in_their_order_or_are_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["program", "a", "b", "c"])
    assert paths("", "first", "second", "third") == [Path("a"), Path("b"), Path("c")]
    assert paths("", "first", last="others") == [Path("a"), Path("b"), Path("c")]
    for name in ("package", "lab", "library", "channels", "corpus", "completions"):
        monkeypatch.setattr(sys, "argv", [name])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_module(f"benchmarks.embedded_models.{name}", run_name="__main__")
        assert "the following arguments are required" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("a: b; do c"), "2", "error: a: b; do c"),
        (FileNotFoundError(2, "gone", "x"), "2", "error: x: gone"),
        (OSError("odd"), "2", "error: odd"),
        (KeyboardInterrupt(), "130", "interrupted"),
    ],
)
def test_a_users_error_is_a_line(capsys, error, code, line):
    with pytest.raises(SystemExit, match=code), errors_in_one_line():
        raise error
    assert capsys.readouterr().err == f"{line}\n"


def test_a_folder_of_others_is_refused(tmp_path):
    check_own(tmp_path / "new", "a")
    check_own(tmp_path, "a")
    (tmp_path / "a").write_text("")
    (tmp_path / ".left-by-a-killed-process").write_text("")
    check_own(tmp_path, "a", "b")
    with pytest.raises(InputError, match="a: a file; give another folder"):
        check_own(tmp_path / "a", "a")
    (tmp_path / "c").write_text("")
    with pytest.raises(InputError, match="holds c; give a folder of its own"):
        check_own(tmp_path, "a", "b")
