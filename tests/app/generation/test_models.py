"""Models are found in the chosen folders and nowhere else, and bring no code."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.errors import refusal
from helpers.family import save_family_model
from helpers.hostile import edited, save_hostile_model
from helpers.steps import result
from mlx_gateloop.app.generation.models import Models

import mlx_gateloop as gl
from benchmarks.embedded_models.package import sums
from mlx_gateloop.tokenizer import byte_tokenizer


@pytest.fixture
def folder(tmp_path, models_folder):
    shutil.copytree(models_folder / "tiny", tmp_path / "models" / "tiny")
    shutil.copytree(models_folder / "tiny", tmp_path / "outside")
    return tmp_path / "models"


def write_sums(directory):
    (directory / "SHA256SUMS").write_text(sums(directory))


def test_names_and_shapes(folder, models_folder, tmp_path):
    models = Models([folder, models_folder, folder / "tiny"], trusted=folder)
    assert models.names() == ["tiny", "fixed"]
    info = models.info("fixed")
    assert (info.layers, info.channels, info.transition) == (2, 16, "fixed")
    loaded = models.load("tiny")
    assert loaded.model.args.hidden_size == 16
    assert loaded.fingerprint == models.fingerprint("tiny") != models.fingerprint("fixed")
    assert result(loaded.tokenizer.call("write", "answer", [], 72, [73])) == ("H", ["I"])
    (folder / "tiny" / "chat_template.jinja").write_text("another")
    assert models.fingerprint("tiny") != loaded.fingerprint
    assert Models([folder / "tiny"]).names() == ["tiny"]  # a root may be a model
    assert Models([folder / "tiny"]).info("tiny").layers == 2
    shutil.copytree(models_folder / "fixed", tmp_path / "mine" / "tiny")
    assert Models([folder, tmp_path / "mine"]).info("tiny").transition == "fixed", "the last one"
    for name in (str(folder / "tiny"), "tiny/../tiny"):
        assert Models([folder]).info(name).layers == 2


def test_nothing_outside_the_folders(folder):
    (folder / "link").symlink_to(folder.parent / "outside")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").write_text("")
    models = Models([folder])
    names = ["../outside", "tiny/../../outside", "..", ".", "", "/", "/etc", "~", "tiny\0", "a\nb"]
    names += ["link", "loop", "nothing", "owner/name", "https://example.org/x", "x" * 501]
    names += ["link/../tiny/../link", None, 3, str(folder.parent / "outside"), "x" * 300]
    for name in names:
        for call in (models.load, models.info, models.check, models.fingerprint):
            assert "choose one of: tiny" in refusal(call, name)
    assert models.names() == ["tiny"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "extra/deep.json"])
def test_no_file_of_a_model_leads_outside(folder, name):
    secret = folder.parent / "secret"
    secret.write_text("{}")
    path = folder / "tiny" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(secret)
    assert refusal(Models([folder]).load, "tiny") == f"tiny/{name}: is outside the models folder"


def test_links_within_the_folders_are_followed(folder):
    (folder / "alias").symlink_to(folder / "tiny")
    (folder / "tiny" / "model.safetensors").rename(folder / "blob")
    (folder / "tiny" / "model.safetensors").symlink_to(folder / "blob")
    models = Models([folder])
    assert models.names() == ["alias", "tiny"]
    assert models.load("alias").fingerprint == models.load("tiny").fingerprint


def test_code_is_never_run(folder):
    for name in ("code.py", "gateloop.py"):  # the second one as `save` writes it
        (folder / "tiny" / name).write_text("raise SystemExit('code was run')")
    save_family_model(folder / "hgrn", "hgrn")
    (folder / "hgrn" / "gateloop.py").write_text("raise SystemExit('code was run')")
    models = Models([folder])
    assert models.load("tiny").model.args.hidden_size == 16
    assert models.load("hgrn").model.args.hidden_size == 64
    code = (("tokenizer_config", "model_file"), ("tokenizer_config", "auto_map"))
    for file, key in (*code, ("config", "auto_map")):
        edited(f"{file}.json", **{key: "code.py"})(folder / "tiny")
        line = refusal(models.load, "tiny")
        assert line == f"tiny/{file}.json: {key} would run repository code; not allowed"


def test_the_list_of_hashes_is_checked(folder):
    tiny, models = folder / "tiny", Models([folder])
    (tiny / "notes").write_text("a note")
    write_sums(tiny)
    models.load("tiny")
    (tiny / "notes").write_text("another note")
    assert "tiny/notes: differs from SHA256SUMS" in refusal(models.load, "tiny")
    write_sums(tiny)
    weights = bytearray((tiny / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tiny / "model.safetensors").write_bytes(weights)
    assert "tiny/model.safetensors: differs from SHA256SUMS" in refusal(models.load, "tiny")
    write_sums(tiny)
    (tiny / "model-2.safetensors").write_bytes(weights)
    assert "tiny/model-2.safetensors: is not listed" in refusal(models.load, "tiny")
    (tiny / "model-2.safetensors").unlink()
    (tiny / "notes").unlink()
    assert "tiny/notes: differs" in refusal(models.load, "tiny")
    (tiny / "SHA256SUMS").write_text(f"{'0' * 64}  ../../secret\n")
    assert "../../secret: differs" in refusal(models.load, "tiny")


def test_broken_models_are_named(folder):
    models = Models([folder])
    edited("config.json", gate="x" * 1_000_000)(folder / "tiny")
    assert len(refusal(models.info, "tiny")) < 300
    (folder / "tiny" / "config.json").write_text("{")
    assert refusal(models.load, "tiny").startswith("tiny/config.json: not readable JSON: Exp")
    assert "no such folder" in refusal(Models, [folder / "missing"])
    (folder / "empty").mkdir()
    assert "the models folders are empty" in refusal(Models([folder / "empty"]).info, "x")


def test_the_hub_is_asked_only_where_that_is_allowed(folder, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns, local_files_only):
        if not local_files_only:
            asked.append((name, allow_patterns))
        elif not asked:
            raise OSError("not here")
        return str(copy)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    hub, copy = folder.parent / "hub", folder.parent / "hub" / "snapshots" / "1"
    shutil.copytree(folder / "tiny", copy)
    (copy / "model.safetensors").rename(hub / "blob")
    (copy / "model.safetensors").symlink_to(hub / "blob")
    refusal(Models([folder]).load, "owner/name")
    allowed = Models([folder], allow_hub=True)
    for name in ("owner/..", "../outside"):
        refusal(allowed.load, name)
        refusal(allowed.fetch, name)
    allowed.check("owner/name")
    assert "owner/name" in refusal(allowed.load, "owner/name")  # nothing but fetch asks the network
    allowed.fetch("tiny")
    assert not asked
    allowed.fetch("owner/name")
    assert allowed.load("owner/name").model.args.hidden_size == 16
    ((name, patterns),) = asked
    assert name == "owner/name"
    assert not any(Path("code.py").match(pattern) for pattern in patterns)
    edited("config.json", auto_map={"AutoModel": "code.Model"})(copy)
    assert "would run repository code" in refusal(allowed.load, "owner/name")


def test_no_network_is_one_line(folder, monkeypatch):
    for call in ("huggingface_hub.snapshot_download", "socket.getaddrinfo"):
        monkeypatch.setattr(call, Mock(side_effect=OSError("no\nnetwork")))
    line = refusal(Models([folder], allow_hub=True).fetch, "owner/name")
    assert line == "owner/name: cannot be downloaded from the hub: no network"


@pytest.mark.parametrize("kind", ["many layers", "fifo", "long weights"])
def test_hostile_files_are_refused_before_they_are_read(tmp_path, kind):
    save_hostile_model(tmp_path / "bad", kind)
    models = Models([tmp_path])
    for ask in (models.load, models.fingerprint):
        line = refusal(ask, "bad")
        assert line.startswith("bad")
        assert str(tmp_path) not in line


def test_a_model_that_draws_tokens_it_cannot_read_is_refused(folder):
    args = gl.ModelArgs(vocab_size=300, num_outputs=400, hidden_size=8, num_hidden_layers=1)
    gl.save(gl.Model(args), byte_tokenizer(), folder / "tiny")
    assert "tiny: has more outputs than inputs" in refusal(Models([folder]).load, "tiny")
