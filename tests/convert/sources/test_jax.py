"""Parity with logits of the two JAX packages' own classes, see write_golden_jax.py."""

import io

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import refused, run
from helpers.family import random_tokens
from helpers.flax_model import GOLDEN, LENGTHS, SIZES, jax_weights, packed
from helpers.parity import converted, difference
from mlx.utils import tree_unflatten

import mlx_gateloop as gl

kinds = pytest.mark.parametrize("kind", ["flax", "equinox"])


def state(kind, *num_tokens):
    weights = jax_weights(*num_tokens)
    if kind == "equinox":
        weights = {str(i): array for i, array in enumerate(weights.values())}
    return weights


@kinds
def test_logits_are_those_of_the_package(kind):
    ours, reference = converted(state(kind), "jax")
    with np.load(GOLDEN) as golden:
        for length in LENGTHS:
            tokens = random_tokens(length, batch=2) % SIZES["num_tokens"]
            expected = golden[f"{kind} {length}"]
            assert difference(ours(mx.array(tokens)), expected) <= 1e-5
            assert difference(reference.logits(tokens), expected) <= 1e-5


def write(path, weights):
    """Write arrays as `equinox.tree_serialise_leaves` or flax does."""
    if path.suffix == ".msgpack":
        path.write_bytes(packed({"params": tree_unflatten(list(weights.items()))}))
        return
    with path.open("wb") as file:
        for array in weights.values():
            np.save(file, array)


@kinds
def test_files_convert_and_are_verified(kind, tmp_path, capsys):
    path = tmp_path / ("model.eqx" if kind == "equinox" else "model.msgpack")
    write(path, state(kind))
    options = ["--tokenizer", "bytes", "--verify"]
    assert "13" in refused(capsys, path, tmp_path / "out", *options)  # too few tokens for bytes
    write(path, wide := state(kind, 262))
    assert run(path, tmp_path / "out", *options) == 0
    model, _ = gl.load(tmp_path / "out")
    ours, _ = converted(wide, "jax")
    tokens = mx.array(random_tokens(9))
    assert mx.array_equal(model(tokens), ours(tokens))


def test_damaged_files_are_one_line(tmp_path, capsys):
    weights = state("equinox")
    buffer = io.BytesIO()
    np.save(buffer, weights["0"])
    path = tmp_path / "model.eqx"
    for content, message in [
        (buffer.getvalue()[:-3], "array 0 is not whole"),
        (b"no arrays", "no .eqx file"),
        (buffer.getvalue(), "no known source"),
    ]:
        path.write_bytes(content)
        assert message in refused(capsys, path, tmp_path / "out")
    write(path, weights | {"18": weights["18"][:, :15]})  # of gamma and theta
    message = refused(capsys, path, tmp_path / "out", "--tokenizer", "bytes")
    assert "18: its shape (8, 15) does not make" in message
    weights.pop(str(len(weights) - 1))
    write(path, weights)
    assert "1 missing: 25" in refused(capsys, path, tmp_path / "out", "--tokenizer", "bytes")
