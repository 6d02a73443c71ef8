"""Files on disk after a failure, --force, --dry-run and --push."""

from pathlib import Path

import pytest
from helpers.checkpoints import FILES, contents, old_model, refused, run
from mlx_gateloop.convert import from_source
from mlx_gateloop.convert.plan import Plan


def test_an_existing_output_is_kept_unless_forced(source, out, capsys):
    before = old_model(out)
    message = refused(capsys, source, out, "--tokenizer", "bytes")
    assert "exists" in message
    assert "--force" in message
    assert contents(out) == before
    assert run(source, out, "--tokenizer", "bytes", "--force") == 0
    assert {file.name for file in out.iterdir()} == FILES


def test_force_replaces_models_only(tmp_path, source, out, capsys):
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    flags = ["--tokenizer", "bytes", "--force"]
    for kept in (out, out / "thesis.tex"):
        message = refused(capsys, source, kept, *flags)
        assert "holds more than a model of ours, or none" in message
    # nor the directory with the weights in it
    (source.parent / "config.json").write_text("{}")
    assert "holds the source" in refused(capsys, source, source.parent, *flags)
    assert "holds the source" in refused(capsys, source, tmp_path, *flags)
    (tmp_path / "file").write_text("")
    message = refused(capsys, source, tmp_path / "file" / "out", *flags)
    assert "is not a writable directory" in message
    assert source.exists()
    assert (out / "thesis.tex").exists()


@pytest.mark.parametrize("stage", ["write", "load", "quantize"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_changes_nothing(source, out, capsys, monkeypatch, stage, failure):
    def fail(*arguments):
        if stage == "write":  # half of it is there
            arguments[-1].mkdir(parents=True)
            (arguments[-1] / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(Plan if stage == "load" else from_source, stage, fail)
    flags = ["--tokenizer", "bytes", "--force", "-q", "--q-group-size", 32]
    code = 2 if isinstance(failure, OSError) else 130
    place = out.parent / "deep" / "er"
    before = {p.name for p in out.parent.iterdir()}
    assert run(source, place, *flags) == code  # where nothing was
    assert {p.name for p in out.parent.iterdir()} == before
    model = old_model(out)
    assert run(source, out, *flags) == code  # where a model was
    assert contents(out) == model
    assert {p.name for p in out.parent.iterdir()} == before | {out.name}
    assert len(capsys.readouterr().err.strip().splitlines()) in (2, 3)


def test_a_dry_run_says_all_and_writes_nothing(tmp_path, source, out, capsys):
    before = contents(tmp_path)
    words = [source, tmp_path / "a" / "b", "--tokenizer", "bytes", "--dry-run", "--push", "me/it"]
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert "inferred from the weights:" in said
    assert "nothing was written" in said
    assert "nothing was pushed to me/it" in said
    assert contents(tmp_path) == before
    assert not (tmp_path / "a").exists()
    flags = ["--tokenizer", "bytes", "-q", "--q-group-size", "128", "--dry-run"]
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


def test_push_uploads_the_directory(source, out, capsys, hub):
    assert run(source, out, "--tokenizer", "bytes", "--push", "me/it") == 0
    assert hub.calls == ["whoami", "me/it", FILES]
    assert "pushed to https://hub/me/it" in capsys.readouterr().out
    assert "--push it: expected USER/NAME" in refused(capsys, source, out, "--push", "it")


def test_a_push_that_fails_leaves_the_output_as_it_was(source, out, capsys, hub, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route\nto host")

    words = [source, out, "--tokenizer", "bytes", "--push", "me/it", "--force"]
    before = old_model(out)
    monkeypatch.setattr(hub, "upload_folder", refuse)
    assert "--push me/it: no route to host" in refused(capsys, *words)
    assert contents(out) == before
    monkeypatch.setattr(hub, "whoami", refuse)
    hub.calls.clear()
    assert "--push me/it: no route to host" in refused(capsys, *words)
    assert hub.calls == []
    assert contents(out) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("disk")])
def test_no_error_names_the_folder_in_which_the_output_is_made(
    source, out, capsys, monkeypatch, error
):
    assert ".making-" not in refused(capsys, source, "/proc/out", "--tokenizer", "bytes")

    def full(path, *_, **__):
        error.filename = str(path)
        raise error if isinstance(error, OSError) else RuntimeError(f"cannot open {path}")

    monkeypatch.setattr("mlx.core.save_safetensors", full)
    message = refused(capsys, source, out, "--tokenizer", "bytes")
    assert message.startswith(f"error: {out}: ")
    assert ".making-" not in message
    assert not out.exists()
