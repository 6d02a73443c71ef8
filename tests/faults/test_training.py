"""Damaged checkpoints, two runs at once, clocks that jump, and disks that refuse."""

import contextlib
import ctypes
import errno
import os
import shutil
import subprocess
import sys
import time
from itertools import count

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
HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


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
    return last


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
    for path in (last, out / "model.safetensors"):
        same_arrays(path, straight / path.relative_to(out))
    assert read_newest(last.with_stem("previous"))[1].step == 4, "the damaged one is gone"


def test_a_second_run_in_the_same_directory_is_refused(straight, text, tmp_path, capsys):
    out = tmp_path / "out"
    stopped(straight, out)
    words = ["train", "--data", text, "--out", str(out), "--resume"]
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert first.stdout.readline() == b"held\n"
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {out}: another process is writing there")
        assert len(said.splitlines()) == 1
    finally:
        first.kill()
        first.communicate()
    assert main(words) == 0, "a killed process leaves no lock"


def test_two_new_runs_in_the_same_directory(text, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".starting").touch()
    with locked(out), pytest.raises(InputError, match="another process is writing there"):
        train(TINY, text, out)
    assert [path.name for path in out.iterdir()] == [".starting"]
    train(TINY, text, out)
    assert not (out / ".starting").exists()


def test_a_clock_that_runs_backwards(straight, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    last = stopped(straight, out)
    os.utime(last, (0, 0))  # older than the checkpoint before
    seconds = count(2_000_000_000, -86_400)
    monkeypatch.setattr(time, "time", lambda: next(seconds))
    train(TINY, text, out, resume=True)
    same_arrays(last, straight / "checkpoints" / "last.safetensors")


@contextlib.contextmanager
def as_any_user():
    """Root without the right to write where the permissions refuse it; others are that already."""
    libc, word = ctypes.CDLL(None), ctypes.c_uint32
    header, saved = (word * 2)(0x20080522, 0), (word * 6)()  # this thread, by the third interface
    libc.capget(header, saved)
    override = 1 << 1  # CAP_DAC_OVERRIDE
    fewer = (word * 6)(saved[0] & ~override, *saved[1:])
    libc.capset(header, fewer)
    try:
        yield
    finally:
        libc.capset(header, saved)


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("where", ["", "checkpoints"])
def test_a_directory_that_cannot_be_written(straight, text, tmp_path, where):
    out = tmp_path / "out"
    last = stopped(straight, out)
    before = last.read_bytes()
    (out / where).chmod(0o555)
    with (
        as_any_user(),
        pytest.raises(InputError, match=r"Permission denied|Failed to open") as caught,
    ):
        train(TINY, text, out, resume=True)
    assert "\n" not in str(caught.value)
    assert last.read_bytes() == before
    (out / where).chmod(0o755)
    train(TINY, text, out, resume=True)
    same_arrays(last, straight / "checkpoints" / "last.safetensors")


@pytest.mark.parametrize("free", [0, 16, 36, 60])
def test_a_disk_that_is_full(straight, text, tmp_path, small_disk, free):
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
    for name in ("checkpoints/last.safetensors", "model.safetensors"):
        same_arrays(out / name, straight / name)
    names = {path.relative_to(out) for path in out.rglob("*")}
    assert names == {path.relative_to(straight) for path in straight.rglob("*")}


def test_a_disk_that_is_full_everywhere(straight, text, tmp_path, monkeypatch):
    """Without root too: whatever is written first is refused."""
    out = tmp_path / "out"
    last = stopped(straight, out)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="No space left on device"):
            train(TINY, text, out, resume=True)
    assert read_newest(last)[1].step == 4
    train(TINY, text, out, resume=True)
    same_arrays(last, straight / "checkpoints" / "last.safetensors")
