"""Files of states: the same text goes on from them, and nothing else's is taken or mixed."""

import json
import re
from itertools import permutations

import mlx.core as mx
import pytest
from helpers.errors import refusal
from helpers.models import GROWING, VARIANTS, close, ruined, tiny_model, tokens
from helpers.recurrent import recurrent_model
from mlx.utils import tree_flatten
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers

import mlx_gateloop as gl
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.io.states import describe, mix
from mlx_gateloop.tokenizer import byte_tokenizer

TEXT = tokens(30)[0].tolist()
MODELS = {name: (VARIANTS | GROWING)[name] for name in ("paper", "real heads", "softmax")}
DEEP = {"num_hidden_layers": 150}  # whose state has many indices


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def has_read(model, count=20):
    state = gl.State(model.make_cache())
    for start in range(0, count, 7):
        state.read(model, tokens(30)[0, start : min(start + 7, count)])
    return state


@pytest.mark.parametrize("options", [*MODELS.values(), DEEP], ids=[*MODELS, "deep"])
def test_a_text_goes_on_from_its_file_in_a_model_that_was_saved_later(options, tokenizer, tmp_path):
    model = tiny_model(vocab_size=len(tokenizer), **options)
    gl.write_state(tmp_path / "book.state", has_read(model), model, tokenizer)
    gl.save(model, tokenizer, tmp_path / "model")
    state = gl.read_state(tmp_path / "book.state", *gl.load(tmp_path / "model"))
    assert (state.tokens, state.last) == (20, TEXT[12:20])
    whole = model(mx.array([TEXT]))[0]
    close(state.logits, whole[19])
    state.read(model, TEXT[20:])
    close(state.logits, whole[-1])
    assert state.tokens == 30


def test_mlx_lm_reads_the_file_and_its_own_are_read(tokenizer, tmp_path):
    model, path = tiny_model(), tmp_path / "book.safetensors"
    gl.write_state(path, has_read(model), model, tokenizer, "models/mine")
    cache, metadata = load_prompt_cache(str(path), return_metadata=True)
    assert metadata["model"] == "models/mine"
    assert json.loads(metadata["tokenizer_config"]) == {}
    close(model(mx.array([TEXT[20:]]), cache)[0], model(mx.array([TEXT]))[0, 20:])
    save_prompt_cache(str(path), has_read(model).cache)
    state = gl.read_state(path, model, tokenizer)
    assert state.logits is None
    text = stream(model, tokenizer, "", Sampling(temperature=0.0), state=state)
    assert "the state has no next token" in refusal(list, text)
    state.read(model, TEXT[20:])
    close(state.logits, model(mx.array([TEXT]))[0, -1])


@pytest.mark.parametrize("options", [*MODELS.values(), {"conv_size": 4}], ids=[*MODELS, "conv"])
@pytest.mark.parametrize("dtypes", [*permutations((mx.float32, mx.bfloat16))], ids=str)
def test_weights_of_another_dtype_go_on(options, dtypes, tokenizer, tmp_path):
    model = tiny_model(**options)
    model.set_dtype(mx.bfloat16)
    for dtype in dtypes:
        model.set_dtype(dtype)
        if dtype == dtypes[0]:
            gl.write_state(tmp_path / "book.state", (written := has_read(model)), model, tokenizer)
    state = gl.read_state(tmp_path / "book.state", model, tokenizer)
    caches = [[layer.state for layer in s.cache] for s in (state, written, has_read(model))]
    for (_, one), (_, other), (_, like) in zip(*map(tree_flatten, caches), strict=True):
        if one is not like:  # None stands for no padding
            assert one.dtype == like.dtype
            close(one.astype(mx.float32), other.astype(mx.float32), 1e-2)
    state.read(model, TEXT[20:])
    assert state.tokens == 30


@pytest.mark.parametrize("name", ["falcon_h1", "qwen2", "plamo2"])
def test_the_state_of_a_model_of_mlx_lm_goes_on(name, tokenizer, tmp_path):
    model = recurrent_model(name)
    state, part = gl.State(make_prompt_cache(model)), tmp_path / "part.state"
    state.read(model, TEXT[:20])
    gl.write_state(part, state, model, tokenizer)
    again = gl.read_state(part, model, tokenizer)
    for each in (state, again):
        each.read(model, TEXT[20:])
    close(again.logits, state.logits)


def test_a_state_that_read_nothing_is_refused(tokenizer, tmp_path):
    path = tmp_path / "new.state"
    for options in MODELS.values():
        model = tiny_model(**options)
        empty = gl.State(model.make_cache())
        assert "the state is empty" in refusal(gl.write_state, path, empty, model, tokenizer)
        assert "tokens: expected ids from 0" in refusal(empty.read, model, [1, -1])
        assert "a folder" in refusal(gl.write_state, tmp_path, has_read(model), model, tokenizer)
        model(tokens(3, batch=2), empty.cache)
        assert "several texts" in refusal(gl.write_state, path, empty, model, tokenizer)
        unknown = has_read(ruined(model))
        assert "the state is not finite" in refusal(gl.write_state, path, unknown, model, tokenizer)
        assert not path.exists()


def test_the_state_of_anything_else_is_refused(tokenizer, tmp_path):
    model, path = tiny_model(), tmp_path / "book.state"
    gl.write_state(path, has_read(model), model, tokenizer, "models/mine")
    larger = byte_tokenizer()
    larger.add_tokens(["abc"])
    adapted = tiny_model()
    linear_to_lora_layers(adapted, 2, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    others = {
        "model": (tiny_model(vocab_size=9), tokenizer),
        "weights": (tiny_model(seed=1), tokenizer),
        "tokenizer": (model, larger),
    }
    for what, model_and_tokenizer in others.items():
        found = refusal(gl.read_state, path, *model_and_tokenizer)
        assert f"does not match the {what}; load the model that wrote it, 'models/mine'" in found
    assert "does not match the weights" in refusal(gl.read_state, path, adapted, tokenizer)
    gl.write_state(path, has_read(adapted), adapted, tokenizer)
    adapted.layers[0].time_mixing.q_proj.lora_b += 1
    assert "does not match the adapter" in refusal(gl.read_state, path, adapted, tokenizer)


HOSTILE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "no safetensors": lambda data: b"x" * 500,
    "a header beyond the file": lambda data: (2**62).to_bytes(8, "little") + data[8:],
    "another class": lambda data: data.replace(b"ArraysCache", b"RotatingKVC"),
    "numbers that are words": lambda data: data.replace(b'\\"tokens\\": 20', b'\\"tokens\\": []'),
    "tokens below zero": lambda data: data.replace(b'\\"last\\": [', b'\\"last\\":[-'),
    "tokens without end": lambda data: data.replace(b': 20, \\"last\\": [', b':1e999,\\"last\\":['),
    "an index that needs gigabytes": lambda data: data.replace(b'"0.gateloop"', b'"1.99999999"'),
    "fewer logits": lambda data: re.sub(rb'(logits.": .").{16}', rb"\1" + 16 * b"!", data),
    "no numbers": lambda data: data[:-4] + b"\xff\xff\xff\x7f",
    "another shape": lambda data: data.replace(b'"shape":[1,2,8]', b'"shape":[2,1,8]'),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_file_is_one_line(change, tokenizer, tmp_path):
    model, path = tiny_model(), tmp_path / "book.state"
    gl.write_state(path, has_read(model), model, tokenizer)
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    found = refusal(gl.read_state, path, model, tokenizer)
    assert re.search(r"book.state: (not a state|does not match the model)", found)


def test_a_write_that_fails_keeps_the_file_before(tokenizer, tmp_path, monkeypatch):
    model, path = tiny_model(), tmp_path / "book.state"
    gl.write_state(path, has_read(model), model, tokenizer)
    before = path.read_bytes()

    def full(file, *_):
        file.write(b"half")
        raise RuntimeError("No space left on device")

    monkeypatch.setattr("mlx_lm.models.cache.save_prompt_cache", full)
    found = refusal(gl.write_state, path, has_read(model, 5), model, tokenizer)
    assert "No space left on device; free space there" in found
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["book.state"]


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    """States: `a` and `b` of two texts, `c` of another model, `s` of attention; two are none."""
    folder = tmp_path_factory.mktemp("states")
    for name, seed, count in (("a", 0, 2), ("b", 0, 1), ("c", 1, 1), ("s", 0, 1)):
        model = tiny_model(seed, **(MODELS["softmax"] if name == "s" else {}))
        gl.write_state(folder / f"{name}.state", has_read(model, count), model, tokenizer)
    for name, metadata in (("d", {}), ("e", {"1.model": "", "2.0": ""})):
        with (folder / f"{name}.state").open("wb") as file:
            mx.save_safetensors(file, {"0.0.0": mx.zeros((2, 2))}, metadata)
    return folder


def test_a_mix_is_the_weighted_sum_and_generates(made, tokenizer, tmp_path, monkeypatch):
    paths, out = [str(made / f"{name}.state") for name in "ab"], str(tmp_path / "mixed.state")
    mix(paths, [0.25, -2.0], out)
    first, second, mixed = (gl.read_state(p, tiny_model(), tokenizer) for p in (*paths, out))
    for a, b, c in zip(first.cache, second.cache, mixed.cache, strict=True):
        assert mx.allclose(c[0], 0.25 * a[0] - 2 * b[0], atol=1e-6)
    assert (mixed.tokens, mixed.logits, mixed.last) == (0, None, [])
    lines = describe(paths[0])
    assert lines["tokens read"] == "2"
    assert [name for name in lines if name.startswith("layer")] == ["layer 0.0.0", "layer 1.0.0"]
    assert "exists; give another file" in refusal(mix, paths, [1, 1], paths[0])
    assert "a.state is not a folder" in refusal(mix, paths, [1, 1], f"{paths[0]}/b/c")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "is not a folder to write in" in refusal(mix, paths, [1, 1], tmp_path / "d.state")


@pytest.mark.parametrize(("names", "factors", "message"), [
    ("ac", [1, 1], "from another model"), ("ab", [1], "expected 2"), ("ax", [1, 1], "no such"),
    ("ab", [1, float("nan")], "expected finite numbers"), ("e", [1], "another program's prompt"),
    ("ab", [1, 1e300], "the sum is not finite"), ("s", [0.5], "a state of attention"),
    ("bad", [1, 1, 1], "not a state of gateloop read or gl.write_state: it has no prompt"),
])  # fmt: skip
def test_what_cannot_be_mixed(made, tmp_path, names, factors, message):
    paths = [str(made / f"{name}.state") for name in names]
    assert message in refusal(mix, paths, factors, tmp_path / "out")
    assert not (tmp_path / "out").exists()
