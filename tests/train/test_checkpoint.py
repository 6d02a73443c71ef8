import contextlib
import errno
import json
import os
import stat
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_gateloop.errors import InputError
from mlx_gateloop.model.lm import Model, ModelArgs
from mlx_gateloop.train.checkpoint import (
    WITHOUT_CHECKSUM,
    Progress,
    read_header,
    read_newest,
    require_same_run,
    restore,
    save_checkpoint,
)
from mlx_gateloop.train.config import OptimizerConfig, TrainConfig
from mlx_gateloop.train.optimizer import make_optimizer

PROGRESS = Progress(step=7, best_loss=1.25, recent=[0.1, 1 / 3])
RUN = {"config": {"seed": 1}}


def parts(seed, hidden_size=8):
    mx.random.seed(seed)
    args = ModelArgs(
        vocab_size=11, hidden_size=hidden_size, num_hidden_layers=1, intermediate_size=16
    )
    model = Model(args)
    optimizer = make_optimizer(OptimizerConfig(), steps=10)
    optimizer.init(model.trainable_parameters())
    return model, optimizer


def test_everything_comes_back(tmp_path):
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=1)
    optimizer.update(model, model.parameters())
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    drawn = mx.random.uniform(shape=(5,))
    expected = tree_flatten([model.parameters(), optimizer.state])

    other_model, other_optimizer = parts(seed=2)
    captured = other_optimizer.state["states"]  # as a compiled step would have
    restore(path, other_model, other_optimizer)
    assert read_header(path) == (PROGRESS, RUN)
    assert mx.array_equal(mx.random.uniform(shape=(5,)), drawn)
    found = tree_flatten([other_model.parameters(), {"states": captured}])
    for (key, one), (other_key, other) in zip(expected, found, strict=True):
        assert key == other_key
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.array(one), np.array(other))


def test_initial_progress_survives_json(tmp_path):
    save_checkpoint(tmp_path / "last.safetensors", *parts(seed=0), Progress(), {})
    assert read_header(tmp_path / "last.safetensors") == (Progress(), {})


def test_a_checkpoint_from_before_loss_scaling(tmp_path):
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=1)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    old = json.loads(metadata["progress"])
    del old["loss_scale"], old["steps_at_scale"]
    first = {"progress": json.dumps(old), "format": "mlx_gateloop training checkpoint 1"}
    mx.save_safetensors(str(path), arrays, metadata | first)
    assert read_header(path)[0] == PROGRESS
    restore(path, model, optimizer)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_file(tmp_path, keep):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *parts(seed=0), PROGRESS, RUN)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"last\.safetensors: truncated or not a safetensors"):
        read_header(path)


def test_foreign_and_missing_files(tmp_path):
    path = tmp_path / "last.safetensors"
    with pytest.raises(InputError, match="no checkpoint to resume; start without --resume"):
        read_header(path)
    mx.save_safetensors(str(path), {"weight": mx.zeros(3)}, {"format": "pt"})
    with pytest.raises(InputError, match="not a training checkpoint"):
        read_header(path)
    path.write_bytes(b"a text, and a rather long one")
    with pytest.raises(InputError, match="truncated or not"):
        read_header(path)


def test_another_architecture_leaves_the_model_alone(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *parts(seed=0), PROGRESS, RUN)
    model, optimizer = parts(seed=0, hidden_size=4)
    before = model.lm_head.weight
    with pytest.raises(InputError, match=r"another architecture: model\.\S+ has shape \("):
        restore(path, model, optimizer)
    assert mx.array_equal(model.lm_head.weight, before)


def test_a_name_of_thousands_of_characters_is_shortened(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *parts(seed=0), PROGRESS, RUN)
    mx.save_safetensors(str(path), mx.load(str(path)) | {"model.\n" + "x" * 5000: mx.ones(1)})
    with pytest.raises(InputError, match=r"another architecture: model\. x+\.\.\. has") as caught:
        restore(path, *parts(seed=0))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("where", ["mlx.core.save_safetensors", "pathlib.Path.replace", "os.fsync"])
def test_full_disk_keeps_the_old_checkpoint(tmp_path, monkeypatch, where):
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=0)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    before, replace = path.read_bytes(), Path.replace

    def full(*args):
        if args[0] == path:  # this one only gets another name
            return replace(*args)
        if where != "os.fsync":
            Path(args[0]).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, full)
    with pytest.raises(InputError, match=r"No space left.*previous one is kept") as caught:
        save_checkpoint(path, model, optimizer, Progress(step=8), RUN)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    kept, progress, _ = read_newest(path)
    assert progress == PROGRESS
    assert kept.read_bytes() == before
    assert list(tmp_path.iterdir()) == [kept]


def test_a_write_that_really_fails_keeps_the_old_checkpoint(tmp_path):
    """The limit on file sizes makes the operating system refuse, as on a full disk."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=0)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"not saved.*previous one is kept"):
            save_checkpoint(path, model, optimizer, Progress(step=8), RUN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert read_header(path)[0] == PROGRESS
    assert list(tmp_path.iterdir()) == [path]


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, *parts(seed=0, hidden_size=1), PROGRESS, RUN)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    random = np.random.default_rng(0)
    positions = *random.integers(header, size=300), *random.integers(header, len(content), 300)
    for position in positions:
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(random.integers(8))
        path.write_bytes(flipped)
        with contextlib.suppress(InputError):
            assert read_header(path) == (PROGRESS, RUN)
            assert position < header


def test_a_checkpoint_of_the_first_format_has_no_checksum(tmp_path):
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=1)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    arrays, metadata = mx.load(str(path), return_metadata=True)
    del metadata["sha256"]
    mx.save_safetensors(str(path), arrays, metadata)
    with pytest.raises(InputError, match="damaged"):
        read_header(path)
    metadata["format"] = "mlx_gateloop training checkpoint 1"
    mx.save_safetensors(str(path), arrays, metadata)
    assert read_header(path) == (PROGRESS, RUN)
    other, other_optimizer = parts(seed=2)
    restore(path, other, other_optimizer)
    assert mx.array_equal(other.lm_head.weight, model.lm_head.weight)


def test_the_content_is_on_the_disk_before_the_names(tmp_path, monkeypatch):
    path = tmp_path / "last.safetensors"
    model, optimizer = parts(seed=0)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    events, fsync, replace = [], os.fsync, Path.replace

    def sync(descriptor):
        events.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def rename(source, target):
        events.append(target.name)
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    save_checkpoint(path, model, optimizer, PROGRESS, RUN)
    assert events == ["content", "previous.safetensors", "last.safetensors", "directory"]


@pytest.mark.parametrize("progress", ["[" * 100_000, "9" * 5000, '{"walk": 3}', "3"])
def test_metadata_that_is_no_progress_is_one_line(tmp_path, progress):
    path = tmp_path / "last.safetensors"
    metadata = {"format": WITHOUT_CHECKSUM, "progress": progress, "run": "{}"}
    mx.save_safetensors(str(path), {"weight": mx.zeros(3)}, metadata)
    with pytest.raises(InputError, match=r"last\.safetensors: damaged \(") as caught:
        read_header(path)
    assert "\n" not in str(caught.value)


# The keys that every checkpoint's configuration has had since the first version.
FIRST = {
    "": "model tokenizer data optimizer steps epochs log_every eval_every checkpoint_every "
    "patience seed dtype checkpoint_blocks",
    "tokenizer": "kind vocab_size path",
    "data": "length batch_size validation_fraction",
    "optimizer": "learning_rate state_transition_learning_rate betas weight_decay warmup_steps "
    "clip_norm accumulate",
}


def test_a_checkpoint_from_before_a_key_is_a_run_with_its_former_value():
    def identity(first=False, **settings):
        config = TrainConfig(steps=1, optimizer=OptimizerConfig(**settings)).to_dict()
        for section, keys in FIRST.items() if first else ():
            part = config[section] if section else config
            for key in part.keys() - keys.split():
                del part[key]
        return {"config": config, "data": {}}

    require_same_run(identity(first=True), identity(), Path("last"))
    changed = identity(state_transition_weight_decay=0.1)
    with pytest.raises(InputError, match=r"differs in optimizer\.state_transition_weight_decay"):
        require_same_run(identity(first=True), changed, Path("last"))
