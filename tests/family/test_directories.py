"""Saved models: our loaders and commands, and mlx-lm's."""

import json

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.family import family_model, random_tokens, save_family_model
from mlx_lm.models.cache import ArraysCache

import mlx_gateloop as gl
from mlx_gateloop import cli
from mlx_gateloop.io.models import OUR_CODE, load_any, load_model, load_weights

NAMES = ("gla_grouped", "hgrn2", "hgrn")
TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(40, 240))
names = pytest.mark.parametrize("name", NAMES)


@names
def test_a_saved_model_loads_everywhere_with_the_same_logits(name, tmp_path):
    model = save_family_model(tmp_path, name)
    tokens = mx.array(random_tokens(20))
    assert "mlx_gateloop" not in (tmp_path / "gateloop.py").read_text()
    for load in (gl.load, load_any, lambda path: mlx_lm.load(str(path), model_config=OUR_CODE)):
        loaded, tokenizer = load(tmp_path)
        assert type(loaded) is type(model)
        assert mx.array_equal(loaded(tokens), model(tokens))
        assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert mx.array_equal(load_weights(tmp_path)(tokens), model(tokens))
    assert "model, not 'gateloop'" in refusal(load_model, tmp_path)


@names
def test_batches_of_mixed_length_write_what_single_prompts_do(name, tmp_path):
    model = save_family_model(tmp_path, name)
    _, tokenizer = gl.load(tmp_path)
    prompts = [tokenizer.encode(text) for text in ("3 times 3", "12", "40 times 40 is")]
    together = mlx_lm.batch_generate(model, tokenizer, prompts, max_tokens=6).texts
    for prompt, text in zip(prompts, together, strict=True):
        assert mlx_lm.generate(model, tokenizer, prompt, max_tokens=6) == text


def test_our_commands_run(tmp_path, capsys):
    save_family_model(tmp_path / "model", "gla_grouped")
    (tmp_path / "text.txt").write_text(TEXT)
    where = ["--model", str(tmp_path / "model")]
    sampling = ["--max-tokens", "5", "--seed", "1"]
    assert cli.main(["generate", *where, "--prompt", "3 times 3", *sampling]) == 0
    assert "generated: 5 tokens" in capsys.readouterr().err
    assert cli.main(["eval", *where, "--data", str(tmp_path / "text.txt"), "--carry"]) == 0
    assert "bits per byte" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gla_grouped", "hgrn"])
def test_mlx_lm_quantizes_tunes_and_fuses(name, tmp_path, capsys):
    model = save_family_model(tmp_path / "model", name)

    def main(*words):
        assert cli.main(["mlx-lm", *map(str, words)]) == 0

    main("convert", "--hf-path", tmp_path / "model", "--mlx-path", tmp_path / "q8", "-q",
         "--q-bits", 8, "--q-group-size", 32)  # fmt: skip
    tokens = mx.array(random_tokens(20))
    quantized = mlx_lm.load(str(tmp_path / "q8"), model_config=OUR_CODE)[0]
    expected, got = np.array(model(tokens)), np.array(quantized(tokens))
    assert 0.9995 < np.corrcoef(got.ravel(), expected.ravel())[0, 1] < 1

    data = tmp_path / "data"
    data.mkdir()
    rows = [json.dumps({"text": line}) for line in TEXT.splitlines()[:16]]
    for part in ("train", "valid"):
        (data / f"{part}.jsonl").write_text("\n".join(rows))
    where = ["--model", tmp_path / "model", "--adapter-path", tmp_path / "adapters"]
    main("lora", "--train", *where, "--data", data, "--iters", 3, "--batch-size", 2,
         "--num-layers", 2, "--learning-rate", 1e-3)  # fmt: skip
    main("fuse", *where, "--save-path", tmp_path / "fused")
    tuned = mlx_lm.load(
        str(tmp_path / "model"), adapter_path=str(tmp_path / "adapters"), model_config=OUR_CODE
    )[0]
    fused = mlx_lm.load(str(tmp_path / "fused"), model_config=OUR_CODE)[0]
    assert np.abs(np.array(tuned(tokens)) - expected).max() > 1e-3
    np.testing.assert_allclose(np.array(fused(tokens)), np.array(tuned(tokens)), atol=2e-4)


@names
def test_what_the_state_holds_is_exact_without_some_tokens(name):
    model, text = family_model(name), random_tokens(12)[0]
    cache = gl.watch.without(model, text, [0, 5])
    rest = model.make_cache()
    model(mx.array(np.delete(text, [0, 5]))[None], rest)
    for got, expected in zip(cache, rest, strict=True):
        assert isinstance(got, ArraysCache)
        np.testing.assert_allclose(np.array(got[0]), np.array(expected[0]), atol=1e-5)
