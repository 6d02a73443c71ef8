"""Wrong input of the commands in benchmarks/."""

import pytest
from helpers.scripts import load_script


@pytest.mark.parametrize(("name", "options", "words"), [
    ("minutes", "RECORDS a/x.txt b/x.txt", "two texts have the same name"),
    ("tuned_states", "RECORDS a/x.txt b/x.txt", "two texts have the same name"),
    ("compare_versions", "python python --turns 0", "a whole number of at least 1, got 0"),
    ("gpu", "REPORT.md --fast", "unrecognized arguments: --fast"),
    ("heads_on_gpu", "REPORT.md", "unrecognized arguments: REPORT.md"),
    ("reading", "x.txt --tokens 100", "expected 22,528 tokens or more to read, got 100"),
])  # fmt: skip
def test_wrong_input_makes_no_table(name, options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("some words " * 200)
    monkeypatch.setattr("sys.argv", [name, *options.split()])
    with pytest.raises(SystemExit, match="2"):
        load_script(f"benchmarks/{name}.py").main()
    assert words in capsys.readouterr().err
