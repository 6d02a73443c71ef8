import contextlib
import errno
import os
import stat
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.training import model_and_optimizer
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.train import checkpoint
from mlx_gateloop.train.checkpoint import Progress, read_header, restore, save_checkpoint
from mlx_gateloop.train.fused_update import make_update

PROGRESS = Progress(step=7, recent=[0.1, 1 / 3])  # with an infinite best loss
RUN = {"config": {"seed": 1}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *model_and_optimizer(), PROGRESS, RUN)
    return path


def test_everything_comes_back(path):
    model, optimizer = model_and_optimizer(seed=1)
    make_update(model, optimizer, 1.0)(model.parameters(), 0, mx.array(1.0))
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    drawn = mx.random.uniform(shape=(5,))
    expected = tree_flatten([model.parameters(), optimizer.state])

    other_model, other_optimizer = model_and_optimizer(seed=2)
    captured = other_optimizer.state  # as a compiled step would have
    restore(path, other_model, other_optimizer)
    assert read_header(path) == (PROGRESS, RUN)
    assert mx.array_equal(mx.random.uniform(shape=(5,)), drawn)
    found = tree_flatten([other_model.parameters(), captured])
    for (key, one), (other_key, other) in zip(expected, found, strict=True):
        assert key == other_key
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.array(one), np.array(other))


def test_truncated_foreign_and_missing_files(path):
    whole = path.read_bytes()
    for content in (b"", whole[:5], whole[:200], whole[:-1], b"a text, and a rather long one"):
        path.write_bytes(content)
        assert "last.safetensors: truncated or not a safetensors" in refusal(read_header, path)
    mx.save_safetensors(str(path), {"weight": mx.zeros(3)}, {"format": "pt"})
    assert "not a training checkpoint" in refusal(read_header, path)
    path.unlink()
    assert "no checkpoint to resume; start without --resume" in refusal(read_header, path)


def test_another_architecture_leaves_the_model_alone(path):
    model, optimizer = model_and_optimizer(hidden_size=4)
    before = model.lm_head.weight
    with pytest.raises(InputError, match=r"another architecture: model\.\S+ has shape \("):
        restore(path, model, optimizer)
    assert mx.array_equal(model.lm_head.weight, before)
    mx.save_safetensors(str(path), mx.load(str(path)) | {"model.\n" + "x" * 5000: mx.ones(1)})
    with pytest.raises(InputError, match=r"another architecture: model\. x+\.\.\. has") as caught:
        restore(path, *model_and_optimizer())
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("where", ["mlx.core.save_safetensors", "pathlib.Path.replace", "os.fsync"])
def test_full_disk_keeps_the_old_checkpoint(path, monkeypatch, where):
    before, replace = path.read_bytes(), Path.replace

    def full(*args):
        if args[0] == path:  # this one only gets another name
            return replace(*args)
        if where != "os.fsync":
            Path(args[0]).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, full)
    with pytest.raises(InputError, match=r"^[^\n]*No space left[^\n]*resume from the one before$"):
        save_checkpoint(path, *model_and_optimizer(), Progress(step=8), RUN)
    monkeypatch.undo()
    kept, progress, _ = checkpoint.read_newest(path)
    assert (progress, kept.read_bytes()) == (PROGRESS, before)
    assert list(path.parent.iterdir()) == [kept]


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *model_and_optimizer(hidden_size=1), PROGRESS, RUN)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0)
    positions = *random.integers(header, size=150), *random.integers(header, len(content), 150)
    for position in positions:
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(random.integers(8))
        path.write_bytes(flipped)
        with contextlib.suppress(InputError):
            assert read_header(path) == (PROGRESS, RUN)
            assert position < header


def test_the_content_is_on_the_disk_before_the_names(path, monkeypatch):
    events, fsync, replace = [], os.fsync, Path.replace

    def sync(descriptor):
        events.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def rename(source, target):
        events.append(target.name)
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    save_checkpoint(path, *model_and_optimizer(), PROGRESS, RUN)
    assert events == ["content", "previous.safetensors", "last.safetensors", "directory"]


@pytest.mark.parametrize("progress", ["[" * 100_000, "9" * 5000, '{"walk": 3}', "3", None])
def test_metadata_that_is_no_progress_is_one_line(path, monkeypatch, progress):
    monkeypatch.setattr(checkpoint, "checksum", lambda *_: "equal")
    metadata = {"format": checkpoint.FORMAT, "progress": progress, "run": "{}", "sha256": "equal"}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    mx.save_safetensors(str(path), {"weight": mx.zeros(3)}, metadata)
    assert "last.safetensors: damaged (" in refusal(read_header, path)


def test_only_a_base_whose_weights_are_compared_may_have_moved():
    before, now = (
        {"config": {"sequence_parallel": 1, "weights": base, "tokenizer": {"path": base}}}
        for base in ("a", "b")
    )
    require, path = checkpoint.require_same_run, Path("last.safetensors")
    assert "differs in tokenizer.path" in refusal(require, before, now, path)
    require(*({**run, "weights": {"config.json": "sha"}} for run in (before, now)), path)
