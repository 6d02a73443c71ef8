"""Conversions and saved conversations on a full disk, and damaged conversations."""

import contextlib
import shutil

import pytest
from helpers.checkpoints import contents
from helpers.disk import fill
from helpers.errors import refusal
from helpers.models import VARIANTS, save_tiny_model
from mlx_gateloop.app.conversations.folder import ConversationFolder
from mlx_gateloop.app.generation.models import Models
from mlx_gateloop.app.generation.prefix_cache import PrefixCache

from mlx_gateloop.cli import main
from mlx_gateloop.errors import InputError

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
BEFORE = [{"role": "user", "content": "before"}]  # an edit


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A state dict of gateloop-transformer, and a model that is no longer wanted."""
    folder = tmp_path_factory.mktemp("source")
    for name, seed in (("ours", 0), ("old", 1)):
        save_tiny_model(folder / name, seed, **VARIANTS["lucidrains"])
    words = ["convert", str(folder / "ours"), str(folder / "weights.safetensors")]
    assert main([*words, "--to", "lucidrains"]) == 0
    return folder


@pytest.mark.parametrize("free", [0, 8, 16, 24])
def test_a_conversion_to_a_full_disk(source, small_disk, capsys, free):
    out = small_disk / "out"
    shutil.copytree(source / "old", out)
    before = contents(out)
    filling = fill(small_disk, free)
    words = ["convert", str(source / "weights.safetensors"), str(out), "--tokenizer", "bytes"]
    assert main([*words, "--force"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("error: ")] == said[-1:]
    assert contents(out) == before
    assert names(small_disk) == ["others", "out"]
    filling.unlink()
    assert main([*words, "--force"]) == 0
    assert contents(out) != before
    assert names(small_disk) == ["out"]


@pytest.fixture
def conversations(source, tmp_path):
    return ConversationFolder(tmp_path / "saved", Models([source]), PrefixCache(1, 1))


def keep(conversations, name, messages=CHAT, version=0):
    return conversations.keep(name, version, "c", "old", messages, [BEFORE])


def test_a_conversation_on_a_full_disk(conversations, small_disk):
    conversations.folder = small_disk
    name, version = keep(conversations, "first")
    filling = fill(small_disk, 0)
    longer = [*CHAT, {"role": "user", "content": "more"}]
    for wanted, messages, known in (("second", CHAT, 0), (name, longer, version)):
        assert "No space left on device" in refusal(keep, conversations, wanted, messages, known)
        assert conversations.names() == ["first"]
        assert conversations.open("first")[1:] == ("old", CHAT, [BEFORE], version)  # as it was
    filling.unlink()
    (small_disk / ".second-0123abcd.safetensors").write_bytes(b"half")  # by a killed process
    assert keep(conversations, "second")[0] == "second"
    assert keep(conversations, name, longer, version)[0] == "first"
    assert names(small_disk) == ["first.safetensors", "second.safetensors"]
    assert conversations.open("first")[2] == longer


def test_a_flipped_bit_in_a_conversation_is_noticed(conversations):
    keep(conversations, "mine")
    path = conversations.folder / "mine.safetensors"
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        flipped = bytearray(content)
        flipped[position] ^= 4
        path.write_bytes(flipped)
        with contextlib.suppress(InputError):
            assert conversations.open("mine")[1:4] == ("old", CHAT, [BEFORE])
    path.write_bytes(content)
    assert conversations.open("mine")[1:4] == ("old", CHAT, [BEFORE])
    for old, new in ((b"hello", b"jello"), (b"before", b"beware")):
        path.write_bytes(content.replace(old, new))
        assert "damaged: wrong checksum" in refusal(conversations.open, "mine")
