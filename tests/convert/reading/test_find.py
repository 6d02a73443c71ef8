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
from helpers.checkpoints import problem
from mlx_gateloop.convert.reading.containers import READERS
from mlx_gateloop.convert.reading.find import find

torch = pytest.importorskip("torch", reason="PyTorch's files are written with torch")


def state_dict():
    return {
        "a.weight": torch.arange(6.0).reshape(2, 3),
        "a.turned": torch.arange(6.0).reshape(2, 3).t(),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([3.0, 1e30], dtype=torch.bfloat16),
    }


VALUES = {name: tensor.float().tolist() for name, tensor in state_dict().items()}


def values(checkpoint):
    return {n: checkpoint.tensor(n).astype(mx.float32).tolist() for n in checkpoint.shapes}


def write_safetensors(tensors, path):
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def write_legacy(tensors, path):
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


WRITERS = {
    "w.pt": torch.save,
    "a name, ünïcode ☃.pth": torch.save,
    "w.bin": write_legacy,
    "w.safetensors": write_safetensors,
    "a name, ünïcode ☃.safetensors": write_safetensors,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_gives_names_shapes_dtypes_and_values(tmp_path, name):
    WRITERS[name](state_dict(), tmp_path / name)
    checkpoint = find(str(tmp_path / name))
    assert checkpoint.shapes == {
        "a.weight": (2, 3),
        "a.turned": (3, 2),
        "half": (2,),
        "brain": (2,),
    }
    assert checkpoint.dtypes["a.weight"] == "float32"
    assert checkpoint.tensor("half").dtype == mx.float16
    assert checkpoint.tensor("brain").dtype == mx.bfloat16
    assert values(checkpoint) == values(checkpoint) == VALUES
    assert checkpoint.notes == []
    (digest,) = checkpoint.hashes().values()
    assert digest == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_a_directory_with_an_index_is_read_shard_by_shard(tmp_path):
    tensors = state_dict()
    weight_map = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        part = {n: t for n, t in tensors.items() if weight_map[n] == shard}
        write_safetensors(part, tmp_path / shard)
    write_safetensors(tensors, tmp_path / "older.safetensors")  # not in the index: left alone
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = find(str(tmp_path))
    assert [file.name for file in checkpoint.files] == [
        "model-0.safetensors",
        "model-1.safetensors",
    ]
    assert values(checkpoint) == VALUES
    assert [checkpoint.position([name]) for name in tensors] == [0, 1, 0, 1]

    (tmp_path / "model-1.safetensors").unlink()
    message = problem(lambda: find(str(tmp_path)))
    assert "'model-1.safetensors' beside it is missing" in message
    shards = ("../up.safetensors", f"{'9' * 5000}.safetensors", "\0.safetensors")
    named = [json.dumps({"weight_map": {"a": shard}}) for shard in shards]
    for broken in ("[]", "{}", "nonsense", *named):
        index.write_text(broken)
        message = problem(lambda: find(str(tmp_path)))
        assert "model.safetensors.index.json: " in message
        assert len(message) < 1000


class Hostile:
    """Pickled, it makes a file when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


def raw_pickle(value, path):
    path.write_bytes(pickle.dumps(value))


class Evaluated(Hostile):
    def __reduce__(self):
        return eval, (f"open({str(self.marker)!r}, 'w')",)


@pytest.mark.parametrize("write", [torch.save, write_legacy, raw_pickle])
def test_a_pickle_that_would_run_code_does_not(tmp_path, write):
    marker, path = tmp_path / "it ran", tmp_path / "w.pt"
    write({"a": torch.ones(1), "b": Hostile(marker)}, path)
    message = problem(lambda: find(str(path)))
    assert "unsafe pickle" in message
    if write is not raw_pickle:  # its frames are refused before the name is reached
        assert "system" in message
        assert "state_dict()" in message
    assert not marker.exists()
    write({"a": torch.ones(1), "b": [argparse.Namespace(c=Evaluated(marker))]}, path)
    assert "unsafe pickle" in problem(lambda: find(str(path)))
    assert not marker.exists()
    # the file does run code where nobody looks
    raw_pickle(Hostile(marker), path)
    pickle.loads(path.read_bytes())
    assert marker.exists()


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.safetensors"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_truncated_files_are_named(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](state_dict(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    message = problem(lambda: values(find(str(path))))
    assert str(path) in message
    assert "fetch it again" in message


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    torch.save(state_dict(), tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as archive,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for member in archive.infolist():
            is_data = member.filename.endswith("data/0")
            data = bytes(10**8) if is_data else archive.read(member)
            bomb.writestr(member.filename, data)
    assert (tmp_path / "bomb.pt").stat().st_size < 10**6
    message = problem(lambda: find(str(tmp_path / "bomb.pt")))
    assert "zip bomb" in message
    assert "100,0" in message


def test_members_that_overlap_are_a_zip_bomb_too(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(100_000)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        member = next(m for m in archive.infolist() if m.filename.endswith("data/0"))
        for _ in range(10):  # the central directory names the same bytes again and again
            archive.filelist.append(member)
        archive._didModify = True
    assert "zip bomb" in problem(lambda: find(str(path)))


ENDLESS = {}
ENDLESS["model"] = ENDLESS


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"a": torch.ones(1).expand(10**12)}, "larger than its data"),
        (ENDLESS, "holds no tensors"),
        ([1], "holds a list, not a state dict"),
    ],
    ids=["a view", "endless", "a list"],
)
def test_what_is_no_state_dict_is_named(tmp_path, tree, expected):
    torch.save(tree, tmp_path / "w.pt")
    assert expected in problem(lambda: find(str(tmp_path / "w.pt")))


def test_what_is_no_checkpoint_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    message = problem(lambda: find(str(tmp_path / "notes.txt")))
    assert "not a file of weights" in message
    assert all(suffix in message for suffix in READERS)
    assert "no such file, directory" in problem(lambda: find(str(tmp_path / "none.pt")))


def test_a_directory_holds_exactly_one_model(tmp_path):
    assert "no weights in there" in problem(lambda: find(str(tmp_path)))
    for name in ("one.pt", "two.pt"):
        torch.save(state_dict(), tmp_path / name)
    assert "(one.pt, two.pt); give one" in problem(lambda: find(str(tmp_path)))
    (tmp_path / "two.pt").unlink()
    assert values(find(str(tmp_path))) == VALUES


def flax_bytes(tree):
    """As flax.serialization.msgpack_serialize packs arrays."""
    msgpack = pytest.importorskip("msgpack", reason="flax's files are written with msgpack")

    def pack(array):
        dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
        parts = (array.shape, dtype, array.tobytes())
        return msgpack.ExtType(1, msgpack.packb(parts, use_bin_type=True))

    return msgpack.packb(tree, default=pack, strict_types=True)


def test_flax_parameters_are_read(tmp_path):
    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)
    chunked = {
        "__msgpack_chunked_array__": True,
        "shape": {"0": 3, "1": 2},
        "chunks": {"0": np.arange(4, dtype=np.float16), "1": np.arange(4, 6, dtype=np.float16)},
    }
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    layer = {"kernel": kernel, "bias": bits}
    wide = np.ones((1000, 1000), np.float32)
    tree = {"params": {"params": {"model": {"0": layer}, "large": chunked, "wide": wide}}}
    tree |= {"step": 3}
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(data := flax_bytes(tree))
    checkpoint = find(str(tmp_path))
    assert checkpoint.dtypes == {
        "model.0.kernel": "float32",
        "model.0.bias": "bfloat16",
        "large": "float16",
        "wide": "float32",
    }
    assert values(checkpoint) == {
        "model.0.kernel": kernel.tolist(),
        "model.0.bias": [1, -2],
        "large": [[0, 1], [2, 3], [4, 5]],
        "wide": wide.tolist(),
    }
    for broken in (data[: len(data) // 2], b"", b"\xc1", flax_bytes([1])):
        path.write_bytes(broken)
        assert str(path) in problem(lambda: find(str(tmp_path)))


def test_without_torch_the_message_says_so(tmp_path, monkeypatch):
    torch.save(state_dict(), tmp_path / "w.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = problem(lambda: find(str(tmp_path / "w.pt")))
    assert 'needs torch: not installed; run: pip install "mlx-gateloop[torch]"' in message


def test_a_hub_id_without_network_is_one_line_or_the_cached_copy(tmp_path, monkeypatch):
    from huggingface_hub import constants

    # a closed port of this machine: nothing leaves it
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = problem(lambda: find("somebody/model"))
    assert message.startswith("somebody/model: not on disk, not from the hub")
    repository = tmp_path / "models--somebody--model"
    snapshot = repository / "snapshots" / "0123456789012345678901234567890123456789"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    torch.save(state_dict(), snapshot / "pytorch_model.bin")
    assert values(find("somebody/model")) == VALUES
