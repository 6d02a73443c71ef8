"""Files on disk after a failure, --force, --dry-run and --push."""

from pathlib import Path

import pytest
from helpers.checkpoints import FILES, contents, old_model, refused, run
from mlx_gateloop.convert import from_source
from mlx_gateloop.convert.plan import Plan

BYTES = ["--tokenizer", "bytes"]


def test_force_replaces_models_only(tmp_path, source, out, capsys):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    (source.parent / "config.json").write_text("{}")
    before = contents(tmp_path)
    for kept, words in (
        (out, "holds more than a model of ours, or none"),
        (out / "thesis.tex", "holds more than a model of ours, or none"),
        (source.parent, "holds the source"),
        (tmp_path, "holds the source"),
        (tmp_path / "file" / "out", "is not a writable directory"),
    ):
        assert words in refused(capsys, source, kept, *BYTES, "--force")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("stage", ["write", "load", "quantize"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_changes_nothing(source, out, capsys, monkeypatch, stage, failure):
    def fail(*arguments):
        if stage == "write":  # half of it is there
            arguments[-1].mkdir(parents=True)
            (arguments[-1] / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(Plan if stage == "load" else from_source, stage, fail)
    flags = [*BYTES, "--force", "-q", "--q-group-size", 32]
    code = 2 if isinstance(failure, OSError) else 130
    before = contents(out.parent)
    assert run(source, out.parent / "deep" / "er", *flags) == code  # where nothing was
    assert contents(out.parent) == before
    old_model(out)  # where a model was
    before = contents(out.parent)
    assert run(source, out, *flags) == code
    assert contents(out.parent) == before
    assert len(capsys.readouterr().err.strip().splitlines()) in (2, 3)


def test_a_dry_run_says_all_and_writes_nothing(tmp_path, source, out, capsys):
    before = contents(tmp_path)
    assert run(source, tmp_path / "a" / "b", *BYTES, "--dry-run", "--push", "me/it") == 0
    said = capsys.readouterr().out
    for words in ("inferred from the weights:", "was written", "nothing was pushed to me/it"):
        assert words in said
    assert contents(tmp_path) == before
    assert not (tmp_path / "a").exists()
    flags = [*BYTES, "-q", "--q-group-size", "128", "--dry-run"]
    assert "nothing can be quantized" in refused(capsys, source, out, *flags)


class Hub:
    """A record of all that the Hugging Face hub would get."""

    calls: list

    def whoami(self):
        self.calls.append("whoami")

    def create_repo(self, repository, exist_ok):
        self.calls.append(repository)
        return f"https://hub/{repository}"

    def upload_folder(self, repo_id, folder_path, commit_message):
        self.calls.append({file.name for file in Path(folder_path).iterdir()})


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(Hub, "calls", [], raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return Hub


def test_push_uploads_the_directory_or_leaves_the_output(source, out, capsys, hub, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route\nto host")

    words = [source, out, *BYTES, "--push", "me/it", "--force"]
    assert run(*words) == 0
    assert hub.calls == ["whoami", "me/it", FILES]
    assert "pushed to https://hub/me/it" in capsys.readouterr().out
    assert "--push it: expected USER/NAME" in refused(capsys, source, out, "--push", "it")
    before = contents(out)
    assert "exists; give another output, or --force" in refused(capsys, source, out, *BYTES)
    for call in ("upload_folder", "whoami"):
        monkeypatch.setattr(hub, call, refuse)
        hub.calls.clear()
        assert "--push me/it: no route to host" in refused(capsys, *words)
        assert contents(out) == before
    assert hub.calls == []
