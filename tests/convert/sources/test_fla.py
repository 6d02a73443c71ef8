"""Checkpoints of flash-linear-attention to model directories."""

import json

import mlx.core as mx
import numpy as np
import pytest
from helpers.checkpoints import refused, run, torch
from helpers.errors import refusal
from helpers.family import COMMON, CONFIGS, family_model, old_names, random_weight, write_checkpoint
from helpers.hostile import edited
from helpers.parity import random_state
from mlx_gateloop.convert.plan import make_plan
from mlx_gateloop.convert.reading.find import find
from mlx_gateloop.convert.sources.fla import Fla, TransformerArgs
from mlx_gateloop.convert.verify import random_tokens
from safetensors.numpy import save_file

import mlx_gateloop as gl
from mlx_gateloop.io.models import load_any
from mlx_gateloop.tokenizer import train_tokenizer

VOCABULARY = 262  # as many tokens as `bytes` has
TRANSFORMER = COMMON | {"model_type": "transformer", "num_heads": 4, "num_kv_heads": 2}


def convert(source, out, *words):
    return run(source, out, "--tokenizer", "bytes", *words)


def write_transformer(path, **options):
    config = TRANSFORMER | {"vocab_size": VOCABULARY} | options
    state = random_state(Fla({}, {}), TransformerArgs.from_dict(config))
    state.setdefault("lm_head.weight", state["model.embeddings.weight"])  # stored if tied, too
    path.mkdir()
    save_file(state, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_model_is_the_source(name, tmp_path, capsys):
    # with less, the norm of an output near zero is steep, and float32 differs by more
    sizes = {"vocab_size": VOCABULARY, "norm_eps": 1.0}
    source = write_checkpoint(tmp_path / "source", name, **sizes)
    assert convert(source, tmp_path / "out", "--verify") == 0
    assert "within the tolerance" in capsys.readouterr().out
    tokens = mx.array(random_tokens(VOCABULARY, 20))
    model, tokenizer = gl.load(tmp_path / "out")
    assert mx.array_equal(model(tokens), family_model(name, **sizes)(tokens))
    assert tokenizer.decode(tokenizer.encode("a")) == "a"
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"A {CONFIGS[name]['model_type']} language model" in card


def test_old_checkpoints_in_shards_of_bfloat16(tmp_path):
    source = write_checkpoint(tmp_path / "source", "gla", vocab_size=VOCABULARY)
    stored = mx.load(str(source / "model.safetensors"))
    weights = {name: np.array(array) for name, array in old_names(stored).items()}
    (source / "model.safetensors").unlink()
    index = {}
    for shard in range(3):
        name = f"pytorch_model-{shard + 1:05}-of-00003.bin"
        part = {k: torch.tensor(weights[k]).bfloat16() for k in sorted(weights)[shard::3]}
        torch.save(part, source / name)
        index |= dict.fromkeys(part, name)
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert convert(source, tmp_path / "out") == 0
    for name, array in mx.load(str(tmp_path / "out" / "model.safetensors")).items():
        assert array.dtype == mx.bfloat16
        ours = mx.array(random_weight(name, array.shape)).astype(mx.bfloat16)
        assert mx.array_equal(array, ours), name
    assert gl.load(tmp_path / "out")[0].args == family_model("gla", vocab_size=VOCABULARY).args


def test_a_wrong_table_is_not_verified(tmp_path, monkeypatch):
    source = write_checkpoint(tmp_path / "source", "gla", vocab_size=VOCABULARY, norm_eps=1.0)
    weights = old_names(mx.load(str(source / "model.safetensors")))
    mx.eval(weights)
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    assert convert(source, tmp_path / "out", "--verify") == 0
    split = "mlx_gateloop.convert.sources.fla.split"
    monkeypatch.setattr(split, lambda parts: lambda array: mx.split(array, parts)[::-1])
    assert convert(source, tmp_path / "wrong", "--verify") == 1


def test_the_tokenizer_beside_the_weights_is_carried_over(tmp_path):
    given = train_tokenizer([f"{n} times {n} is {n * n}." for n in range(99)], 300)
    write_transformer(tmp_path / "source", vocab_size=len(given))
    given.save_pretrained(tmp_path / "source")
    assert run(tmp_path / "source", tmp_path / "out") == 0
    tokenizer = load_any(tmp_path / "out")[1]
    text = "40 times 40"
    assert tokenizer.encode(text) == given.encode(text)
    assert tokenizer.eos_token_id == given.eos_token_id


@pytest.mark.parametrize("tied", [False, True])
def test_the_transformer_becomes_mlx_lms_llama(tied, tmp_path, capsys):
    write_transformer(tmp_path / "source", tie_word_embeddings=tied)
    assert convert(tmp_path / "source", tmp_path / "out", "--verify") == 0
    assert "within the tolerance" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"
    assert convert(tmp_path / "source", tmp_path / "no", "--verify", "--tolerance", "0") == 1
    assert "layer 1, length 1" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "message"), [
    ({"attn": {"layers": [1]}}, "fla: config.json: attn must be None, got {'layers': [1]}"),
    ({"model_type": "gsa"}, "model_type: expected gla, hgrn2, hgrn, transformer, got 'gsa'"),
    ({"model_type": "hgrn"}, "not the keys of fla: "),
    ({"num_hidden_layers": 3}, "14 missing: model.layers.2."),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers: more than the weights have"),
    ({"intermediate_size": 64}, "_proj.weight: its shape (48, 32) does not make model."),
    (None, "fla: config.json: expected beside the weights, found none"),
])  # fmt: skip
def test_bad_input_is_one_line(options, message, tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source", "gla", vocab_size=VOCABULARY)
    if options is None:
        (source / "config.json").unlink()
    else:
        edited("config.json", **options)(source)
    assert message in refused(capsys, source, tmp_path / "out", "--tokenizer", "bytes")
    assert not (tmp_path / "out").exists()


def test_what_the_transformer_has_and_llama_lacks(tmp_path):
    write_transformer(source := tmp_path / "source")
    edited("config.json", num_heads=32, num_kv_heads=16)(source)  # heads of one channel
    message = refusal(make_plan, find(str(source)), None, {})
    assert "num_heads: expected a divisor of hidden_size / 2 = 16" in message
    for key, value in {"qkv_bias": True, "qk_norm": True, "window_size": 8}.items():
        edited("config.json", **{"qkv_bias": False, "qk_norm": False, key: value})(source)
        assert f"config.json: {key} must be" in refusal(make_plan, find(str(source)), None, {})
