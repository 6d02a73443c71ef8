"""State files, mixed and shown without their model."""

import mlx.core as mx
import pytest
from helpers.models import save_tiny_model

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.mixing import describe, mix


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model and the states of two texts; and a state of another model."""
    folder = tmp_path_factory.mktemp("states")
    model, tokenizer = gl.load(save_tiny_model(folder / "model"))
    other, its = gl.load(save_tiny_model(folder / "other", seed=1))
    for name, who, ids in (("a", model, [1, 2]), ("b", model, [3]), ("c", other, [3])):
        state = gl.State(who.make_cache())
        state.read(who, ids)
        gl.write_state(folder / f"{name}.state", state, who, its if who is other else tokenizer)
    return folder, model, tokenizer


def test_a_mix_is_the_weighted_sum_and_generates(made, tmp_path):
    folder, model, tokenizer = made
    paths = [str(folder / f"{name}.state") for name in "ab"]
    out = str(tmp_path / "mixed.state")
    mix(paths, [0.25, -2.0], out)
    first, second, mixed = (gl.read_state(path, model, tokenizer) for path in (*paths, out))
    layers = zip(first.cache, second.cache, mixed.cache, strict=True)
    for a, b, c in layers:
        assert mx.allclose(c[0], 0.25 * a[0] - 2 * b[0], atol=1e-6)
    assert (mixed.tokens, mixed.logits, mixed.last) == (0, None, [])
    lines = describe(paths[0])
    assert lines["tokens read"] == "2"
    assert len([name for name in lines if name.startswith("layer")]) == 2


@pytest.mark.parametrize(
    ("names", "factors", "message"),
    [
        ("ac", [1, 1], "from another model"),
        ("ab", [1], "expected 2"),
        ("ax", [1, 1], "no such"),
        ("bad", [1, 1, 1], "not a state of"),
    ],
)
def test_what_cannot_be_mixed(made, tmp_path, names, factors, message):
    (made[0] / "d.state").write_bytes(b"no state")
    with pytest.raises(InputError, match=message):
        mix([str(made[0] / f"{name}.state") for name in names], factors, tmp_path / "out")
    assert not (tmp_path / "out").exists()
