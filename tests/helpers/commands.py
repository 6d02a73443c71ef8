"""A text and an assertion for tests of the commands."""

from mlx_gateloop.cli import main

TEXT = "".join(f"{n} plus {n} is {n + n}.\n" for n in range(300))


def fails(capsys, *argv):
    """Exit code 2, one line on stderr, no traceback; returns the line."""
    assert main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line
