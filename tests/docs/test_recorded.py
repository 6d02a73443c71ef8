"""A record has the origin of what a command printed."""

import subprocess
import sys

import pytest
from helpers.scripts import ROOT


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["python", "-c", "print(1 + 1)"], 0, "`python -c 'print(1 + 1)'`"),
        (["python", "-c", "print(1); import sys; sys.exit('error: no')"], 1, "error: no"),
        (["nosuch", "a"], 2, "nosuch: No such file or directory"),
        ([], 2, "a command is missing"),
    ],
)
def test_a_record_has_its_command_and_versions_before_the_output(words, code, said):
    command = [sys.executable, ROOT / "benchmarks" / "recorded.py", "A sum", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, min(code, 1))
    assert said in done.stdout + done.stderr
    if code:
        assert done.stdout == ""
    else:
        assert done.stdout.startswith("# A sum\n\n|")
        assert "mlx-gateloop" in done.stdout
        assert done.stdout.endswith("|\n\n2\n")
