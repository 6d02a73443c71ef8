"""Files on disk after a failure, --force and --dry-run."""

from pathlib import Path

import pytest
from helpers.checkpoints import BYTES, contents, old_model, refused, run
from mlx_gateloop.convert import from_source
from mlx_gateloop.convert.plan import Plan


def test_force_replaces_models_only(tmp_path, source, out, capsys):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    (source.parent / "config.json").write_text("{}")
    old_model(tmp_path / "old")
    before = contents(tmp_path)
    said = refused(capsys, source, tmp_path / "old", *BYTES)
    assert "exists; give another output, or --force" in said
    for kept, words in (
        (out, "holds more than a model of ours, or none"),
        (out / "thesis.tex", "holds more than a model of ours, or none"),
        (source.parent, "holds the source"),
        (tmp_path, "holds the source"),
        (Path(), "give the output a name of its own"),
        (tmp_path / "file" / "out", "is not a folder to write in"),
    ):
        assert words in refused(capsys, source, kept, *BYTES, "--force")
    assert contents(tmp_path) == before


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("stage", "failure"), [("save", FULL), ("load", KeyboardInterrupt()), ("quantize", FULL)]
)
def test_a_failure_changes_nothing(source, out, capsys, monkeypatch, stage, failure):
    def fail(*arguments):
        if stage == "save":  # half of it is there
            arguments[-1].mkdir(parents=True)
            (arguments[-1] / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(Plan if stage == "load" else from_source, stage, fail)
    flags = [*BYTES, "--force", "-q", "--q-group-size", 32]
    code = 2 if isinstance(failure, OSError) else 130
    old_model(out)
    before = contents(out.parent)
    for target in (out.parent / "deep" / "er", out):  # where nothing was, and where a model was
        assert run(source, target, *flags) == code
        assert contents(out.parent) == before
    assert len(capsys.readouterr().err.strip().splitlines()) in (2, 3)


def test_a_dry_run_says_all_and_writes_nothing(tmp_path, source, out, capsys):
    before = contents(tmp_path)
    assert run(source, tmp_path / "a" / "b", *BYTES, "--dry-run") == 0
    said = capsys.readouterr().out
    for words in ("inferred from the weights:", "was written"):
        assert words in said
    assert contents(tmp_path) == before
    assert not (tmp_path / "a").exists()
    flags = [*BYTES, "-q", "--q-group-size", "128", "--dry-run"]
    assert "nothing can be quantized" in refused(capsys, source, out, *flags)
