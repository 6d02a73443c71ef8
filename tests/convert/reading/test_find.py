"""Files of weights: what is in them, and every way in which they are broken or hostile."""

import argparse
import hashlib
import json
import os
import pickle
import sys
import zipfile

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import Hostile, save_shards, torch
from helpers.errors import refusal
from helpers.flax_model import packed
from mlx_gateloop.convert.reading.containers import READERS
from mlx_gateloop.convert.reading.find import find

TENSORS = {
    "a.weight": torch.arange(6.0).reshape(2, 3),
    "a.turned": torch.arange(6.0).reshape(2, 3).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "brain": torch.tensor([3.0, 1e30], dtype=torch.bfloat16),
}
VALUES = {name: tensor.float().tolist() for name, tensor in TENSORS.items()}


def values(checkpoint):
    return {n: checkpoint.tensor(n).astype(mx.float32).tolist() for n in checkpoint.shapes}


def write_safetensors(tensors, path):
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def write_legacy(tensors, path):
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


WRITERS = {"ünï ☃.pth": torch.save, "w.bin": write_legacy, "a ☃.safetensors": write_safetensors}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_gives_names_shapes_dtypes_and_values(tmp_path, name):
    WRITERS[name](TENSORS, tmp_path / name)
    checkpoint = find(str(tmp_path / name))
    assert checkpoint.shapes == {n: tuple(tensor.shape) for n, tensor in TENSORS.items()}
    dtypes = {n: str(tensor.dtype).removeprefix("torch.") for n, tensor in TENSORS.items()}
    assert checkpoint.dtypes == dtypes
    assert checkpoint.tensor("half").dtype == mx.float16
    assert checkpoint.tensor("brain").dtype == mx.bfloat16
    assert values(checkpoint) == values(checkpoint) == VALUES
    assert checkpoint.notes == []
    assert checkpoint.hashes() == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}


def test_a_directory_with_an_index_is_read_shard_by_shard(tmp_path):
    save_shards(tmp_path, TENSORS, [0, 1, 0, 1])
    write_safetensors(TENSORS, tmp_path / "older.safetensors")  # not in the index: left alone
    checkpoint = find(str(tmp_path))
    assert [file.stem for file in checkpoint.files] == ["model-0", "model-1"]
    assert values(checkpoint) == VALUES
    assert [checkpoint.position(name) for name in TENSORS] == [0, 1, 0, 1]

    (tmp_path / "model-1.safetensors").unlink()
    assert "'model-1.safetensors' is missing beside it" in refusal(find, str(tmp_path))
    shards = ("../up.safetensors", f"{'9' * 5000}.safetensors", "\0.safetensors")
    named = [json.dumps({"weight_map": {"a": shard}}) for shard in shards]
    for broken in ("[]", "{}", "nonsense", *named):
        (tmp_path / "model.safetensors.index.json").write_text(broken)
        assert "model.safetensors.index.json: " in refusal(find, str(tmp_path))


def raw_pickle(value, path):
    path.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("write", [torch.save, write_legacy, raw_pickle])
def test_a_pickle_that_would_run_code_does_not(tmp_path, write):
    marker, path = tmp_path / "it ran", tmp_path / "w.pt"
    touch = Hostile(os.system, f"touch '{marker}'")
    for value in (touch, [argparse.Namespace(c=Hostile(eval, f"open({str(marker)!r}, 'w')"))]):
        write({"a": torch.ones(1), "b": value}, path)
        message = refusal(find, str(path))
        assert "unsafe pickle" in message
        assert not marker.exists()
        if value is touch and write is not raw_pickle:  # which is refused before the name
            assert "system" in message
    raw_pickle(touch, path)  # the file does run code where nobody looks
    pickle.loads(path.read_bytes())
    assert marker.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_truncated_files_are_named(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](TENSORS, path)
    whole = path.read_bytes()
    for share in (0, 0.01, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        message = refusal(lambda: values(find(str(path))))
        assert str(path) in message
        assert "get it again" in message


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("w/data/0", bytes(10**8))
    assert "zip bomb" in refusal(find, str(tmp_path / "w.pt"))


def test_what_is_no_state_dict_is_named(tmp_path):
    endless = {}
    endless["model"] = endless
    for tree, message in ((endless, "holds no tensors"), ([1], "holds a list, not a state dict")):
        torch.save(tree, tmp_path / "w.pt")
        assert message in refusal(find, str(tmp_path / "w.pt"))


def test_a_view_that_claims_more_than_its_data_is_not_read(tmp_path):
    torch.save({"a": torch.ones(1).expand(10**12)}, tmp_path / "w.pt")
    assert "exceeds its data" in refusal(find(str(tmp_path / "w.pt")).tensor, "a")


def test_what_is_no_checkpoint_is_named(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("hello")
    message = refusal(find, str(tmp_path / "notes.txt"))
    assert all(suffix in message for suffix in READERS)
    assert "no such file, directory" in refusal(find, str(tmp_path / "none.pt"))
    assert "no weights there" in refusal(find, str(tmp_path))
    for name in ("one.pt", "two.pt"):
        torch.save(TENSORS, tmp_path / name)
    assert "(one.pt, two.pt); give one" in refusal(find, str(tmp_path))
    (tmp_path / "two.pt").unlink()
    assert values(find(str(tmp_path))) == VALUES
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refusal(find, str(tmp_path))
    assert 'needs torch: not installed; run: pip install "mlx-gateloop[torch]"' in message


def test_flax_parameters_are_read(tmp_path):
    arange = np.arange(6, dtype=np.float16)
    chunked = {
        "__msgpack_chunked_array__": True,
        "shape": {"0": 3, "1": 2},
        "chunks": {"0": arange[:4], "1": arange[4:]},
    }
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    layer = {"kernel": arange.reshape(2, 3).astype(np.float32), "bias": bits}
    wide = np.ones((1000, 1000), np.float32)
    tree = {"params": {"params": {"model": {"0": layer}, "large": chunked, "wide": wide}}}
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(data := packed(tree | {"step": 3}))
    checkpoint = find(str(tmp_path))
    expected = {
        "model.0.kernel": ("float32", [[0, 1, 2], [3, 4, 5]]),
        "model.0.bias": ("bfloat16", [1, -2]),
        "large": ("float16", [[0, 1], [2, 3], [4, 5]]),
        "wide": ("float32", wide.tolist()),
    }
    assert checkpoint.dtypes == {name: dtype for name, (dtype, _) in expected.items()}
    assert values(checkpoint) == {name: value for name, (_, value) in expected.items()}
    for broken in (data[: len(data) // 2], b"", b"\xc1", packed([1])):
        path.write_bytes(broken)
        assert str(path) in refusal(find, str(tmp_path))


def test_a_hub_id_without_network_is_one_line_or_the_cached_copy(tmp_path, monkeypatch):
    from huggingface_hub import constants

    # a closed port of this machine: nothing leaves it
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal(find, "somebody/model")
    assert message.startswith("somebody/model: not on disk, not from the hub")
    repository = tmp_path / "models--somebody--model"
    (snapshot := repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    torch.save(TENSORS, snapshot / "pytorch_model.bin")
    assert values(find("somebody/model")) == VALUES
