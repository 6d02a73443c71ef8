"""Files of states: the same text goes on from them, and nothing else's is taken."""

import json
import re

import mlx.core as mx
import pytest
from helpers.errors import refusal
from helpers.models import GROWING, VARIANTS, close, tiny_model, tokens
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers

import mlx_gateloop as gl
from mlx_gateloop.errors import InputError
from mlx_gateloop.io import states
from mlx_gateloop.tokenizer import byte_tokenizer

TEXT = tokens(30)[0].tolist()
MODELS = {name: (VARIANTS | GROWING)[name] for name in ("paper", "real heads", "softmax")}


@pytest.fixture
def tokenizer():
    return byte_tokenizer()


def has_read(model, count=20):
    state = gl.State(model.make_cache())
    for start in range(0, count, 7):
        state.read(model, TEXT[start : min(start + 7, count)])
    return state


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_a_text_goes_on_from_its_file(options, tokenizer, tmp_path):
    model = tiny_model(**options)
    gl.write_state(tmp_path / "book.state", has_read(model), model, tokenizer)
    state = gl.read_state(tmp_path / "book.state", model, tokenizer)
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
    save_prompt_cache(str(path), has_read(model).cache, {"model": "models/mine"})
    state = gl.read_state(path, model, tokenizer)
    assert state.logits is None
    state.read(model, TEXT[20:])
    close(state.logits, model(mx.array([TEXT]))[0, -1])


def test_the_state_of_anything_else_is_refused(tokenizer, tmp_path):
    model, path = tiny_model(), tmp_path / "book.state"
    gl.write_state(path, has_read(model), model, tokenizer)
    larger = byte_tokenizer()
    larger.add_tokens(["abc"])
    adapted = tiny_model()
    linear_to_lora_layers(adapted, 2, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    others = {
        "model": (tiny_model(layer_norm_eps=1e-6), tokenizer),
        "weights": (tiny_model(seed=1), tokenizer),
        "tokenizer": (model, larger),
    }
    for what, (other, its_tokenizer) in others.items():
        with pytest.raises(InputError, match=f"written with another {what}; load that one"):
            gl.read_state(path, other, its_tokenizer)
    with pytest.raises(InputError, match=r"written with another (weights|adapter)"):
        gl.read_state(path, adapted, tokenizer)
    gl.write_state(path, has_read(adapted), adapted, tokenizer)
    adapted.layers[0].time_mixing.q_proj.lora_b += 1
    assert "written with another adapter" in refusal(gl.read_state, path, adapted, tokenizer)


HOSTILE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "no safetensors": lambda data: b"x" * 500,
    "a header beyond the file": lambda data: (2**62).to_bytes(8, "little") + data[8:],
    "another class": lambda data: data.replace(b"ArraysCache", b"RotatingKVC"),
    "numbers that are words": lambda data: data.replace(b'\\"tokens\\": 20', b'\\"tokens\\": []'),
    "tokens below zero": lambda data: data.replace(b'\\"last\\": [', b'\\"last\\":[-'),
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
    with pytest.raises(
        InputError, match=r"book.state: (not a state|written with another)"
    ) as caught:
        gl.read_state(path, model, tokenizer)
    assert "\n" not in str(caught.value)


def test_a_write_that_fails_keeps_the_file_before(tokenizer, tmp_path, monkeypatch):
    model, path = tiny_model(), tmp_path / "book.state"
    gl.write_state(path, has_read(model), model, tokenizer)
    before = path.read_bytes()

    def full(file, *_):
        file.write(b"half")
        raise RuntimeError("No space left on device")

    monkeypatch.setattr("mlx_lm.models.cache.save_prompt_cache", full)
    with pytest.raises(InputError, match="No space left on device; free space there"):
        states.write_state(path, has_read(model, 5), model, tokenizer)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["book.state"]
