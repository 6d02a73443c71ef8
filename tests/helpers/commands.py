"""A text, a configuration and an assertion for tests of the commands."""

from mlx_gateloop.cli import main

TEXT = "".join(f"{n} plus {n} is {n + n}.\n" for n in range(300))
TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16},
    "tokenizer": {"kind": "bytes"},
    "data": {"length": 16, "batch_size": 2},
    "steps": 6,
    "eval_every": 3,
    "checkpoint_every": 3,
}


def fails(capsys, *argv):
    """Exit code 2, one line on stderr, no traceback; returns the line."""
    assert main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line
