"""Directories that attack the loader: refused in one line, and nothing large is read or made."""

from unittest.mock import Mock

import mlx.core as mx
import mlx.nn as nn
import mlx_lm  # noqa: F401  (its import is not counted as memory of the loader)
import pytest
from helpers.errors import refusal
from helpers.hostile import FILES, save_hostile_model
from helpers.memory import most_resident
from helpers.models import save_tiny_model, tiny_model
from mlx.utils import tree_flatten

import mlx_gateloop as gl
from mlx_gateloop.io.checks import check
from mlx_gateloop.tokenizer import byte_tokenizer


@pytest.mark.parametrize("kind", FILES)
def test_hostile_files_are_refused(tmp_path, kind):
    path = save_hostile_model(tmp_path / "model", kind)
    before = most_resident()
    line = refusal(gl.load, path)
    assert line.startswith(str(path))
    assert len(line.replace(str(path), "")) < 300
    assert most_resident() - before < 100 << 20


def test_a_model_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    path = save_tiny_model(tmp_path / "model")
    check(path)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 5_000}.get)
    assert "needs 0.0 GB of memory, this machine has 0.0 GB" in refusal(check, path)
    # Half the numbers fit, but not the float32 of them that a CPU needs.
    weights = mx.load(str(path / "model.safetensors"))
    half = {name: w.astype(mx.bfloat16) for name, w in weights.items()}
    mx.save_safetensors(str(path / "model.safetensors"), half)
    size = (path / "model.safetensors").stat().st_size
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": size + 2000}.get)
    with mx.stream(mx.cpu):
        assert "this machine has" in refusal(check, path)


@pytest.mark.parametrize(("bits", "keeps", "in_one"), [(8, True, 1), (8, False, 4), (4, True, 8)])
def test_quantized_matrices_alone_are_unpacked(tmp_path, monkeypatch, bits, keeps, in_one):
    model, needed = tiny_model(vocab_size=262, hidden_size=64, intermediate_size=64), Mock()
    nn.quantize(model, 64, bits)
    gl.save(model, byte_tokenizer(), tmp_path)
    monkeypatch.setattr("mlx_gateloop.io.checks.can_keep_short", lambda: keeps)
    monkeypatch.setattr("mlx_gateloop.io.checks.check_memory", needed)
    with mx.stream(mx.cpu):
        check(tmp_path)
    arrays = [array for _, array in tree_flatten(model.parameters())]
    numbers = sum(x.size * (in_one if x.dtype == mx.uint32 else 1) for x in arrays)
    assert needed.call_args.args[1] == 4 * numbers


def test_what_lies_beside_a_good_model_is_no_reason_to_refuse_it(tmp_path):
    path = save_tiny_model(tmp_path / "model")
    (path / ".#config.json").symlink_to("user@host.1234")  # as Emacs locks a file
    with (path / "corpus.txt").open("wb") as corpus:
        corpus.truncate(2**30)
    for file in ("config.json", "model.safetensors"):  # as the cache of the hub
        (path / file).rename(tmp_path / file)
        (path / file).symlink_to(f"../{file}")
    gl.load(path)


def test_a_tokenizer_that_panics_is_one_line(tmp_path, monkeypatch):
    path = save_tiny_model(tmp_path / "model")
    kind = type("PanicException", (BaseException,), {})  # as PyO3 makes it
    panic = kind("called `Option::unwrap()`\non a `None` value")
    monkeypatch.setattr("mlx_lm.utils._load_tokenizer", Mock(side_effect=panic))
    assert "cannot be loaded: called `Option::unwrap" in refusal(gl.load, path)
