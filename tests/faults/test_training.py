"""Damaged checkpoints, two runs at once, and disks that refuse."""

import errno
import os
import shutil

import pytest
from helpers.disk import fill
from helpers.training import same_arrays

from mlx_gateloop.cli import main
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import locked
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.train.checkpoint import read_newest

SETTINGS = {
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "dropout": 0.1},
    "tokenizer.kind": "bytes",
    "data.length": 32,
    "data.batch_size": 4,
    "steps": 6,
    "log_every": 1,
    "eval_every": 6,
    "checkpoint_every": 2,
}
TINY = TrainConfig.load(None, SETTINGS)


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("a text about nothing that is read again and again\n" * 60)
    return str(path)


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("straight") / "out"
    train(TINY, text, out)
    return out


def stopped(straight, out):
    """The files of the run as a process that died in step 5 leaves them."""
    shutil.copytree(straight, out)
    last = out / "checkpoints" / "last.safetensors"
    last.unlink()
    shutil.copy(last.with_stem("previous"), last)
    os.utime(last, (0, 0))  # clocks play no part
    return last


def assert_same_run(out, straight):
    for name in ("checkpoints/last.safetensors", "model.safetensors"):
        same_arrays(out / name, straight / name)
    names = {path.relative_to(out) for path in out.rglob("*")}
    assert names == {path.relative_to(straight) for path in straight.rglob("*")}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1000] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, os.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    straight, text, tmp_path, capsys, damage
):
    out = tmp_path / "out"
    shutil.copytree(straight, out)
    last = out / "checkpoints" / "last.safetensors"
    damage(last)
    train(TINY, text, out, resume=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "previous" in line]
    assert len(said) == 1
    assert said[0].endswith("continuing from previous.safetensors, step 4")
    assert_same_run(out, straight)
    assert read_newest(last.with_stem("previous"))[1].step == 4, "the damaged one is gone"


def test_a_second_run_in_the_same_directory_is_refused(straight, text, tmp_path, capsys):
    out, new = tmp_path / "out", tmp_path / "new"
    stopped(straight, out)
    words = ["train", "--data", text, "--out", str(out), "--resume"]
    with locked(out):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {out}: another process is writing there")
        assert len(said.splitlines()) == 1
    assert main(words) == 0
    new.mkdir()
    (new / ".starting").touch()  # by a run that is starting
    with locked(new), pytest.raises(InputError, match="another process is writing there"):
        train(TINY, text, new)
    assert [path.name for path in new.iterdir()] == [".starting"]


@pytest.mark.parametrize("free", [0, 16, 36, 60])
def test_a_disk_that_is_full(straight, text, small_disk, free):
    """At the log, at the start, in the middle of a checkpoint, and of the model."""
    out = small_disk / "out"
    last = stopped(straight, out)
    filling = fill(small_disk, free)
    with pytest.raises(InputError, match=r"No space left on device|Unable to write") as caught:
        train(TINY, text, out, resume=True)
    assert "\n" not in str(caught.value)
    assert read_newest(last)[1].step == 4
    filling.unlink()
    train(TINY, text, out, resume=True)
    assert_same_run(out, straight)


def test_a_disk_that_refuses_everywhere(straight, text, tmp_path, monkeypatch):
    """Without root too: whatever is written first is refused."""
    out = tmp_path / "out"
    last = stopped(straight, out)

    def refuse(*_):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(InputError, match="Permission denied; what was saved is kept"):
            train(TINY, text, out, resume=True)
    assert read_newest(last)[1].step == 4
    train(TINY, text, out, resume=True)
    assert_same_run(out, straight)
