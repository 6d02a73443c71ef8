"""A record has the origin of what a command printed."""

import subprocess
import sys

import pytest
from helpers.scripts import ROOT


def recorded(*words):
    command = [sys.executable, ROOT / "benchmarks" / "recorded.py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_record_has_its_command_and_versions_before_the_output():
    done = recorded("A sum", "python", "-c", "print(1 + 1)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# A sum\n\n|")
    assert "`python -c 'print(1 + 1)'`" in done.stdout
    assert "mlx-gateloop" in done.stdout
    assert done.stdout.endswith("|\n\n2\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["python", "-c", "print(1); import sys; sys.exit('error: no')"], 1, "error: no"),
        (["nosuch", "a"], 2, "nosuch: No such file or directory"),
        ([], 2, "a command is missing"),
    ],
)
def test_a_command_that_fails_has_no_record(words, code, said):
    done = recorded("A sum", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
