"""Saved models: our loaders and commands, and mlx-lm's."""

import json

import mlx.core as mx
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.family import random_tokens, save_family_model
from helpers.mlx_lm_commands import TEXT, load, logits, quality

import mlx_gateloop as gl
from mlx_gateloop import cli
from mlx_gateloop.io.models import load_any, load_model, load_weights


@pytest.mark.parametrize("name", ["gla_grouped", "hgrn2", "hgrn"])
def test_a_saved_model_loads_everywhere_with_the_same_logits(name, tmp_path):
    model = save_family_model(tmp_path, name)
    tokens = mx.array(random_tokens(20))
    assert "mlx_gateloop" not in (tmp_path / "gateloop.py").read_text()
    for load_from in (gl.load, load_any, lambda path: load(str(path))):
        loaded, tokenizer = load_from(tmp_path)
        assert type(loaded) is type(model)
        assert mx.array_equal(loaded(tokens), model(tokens))
        assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert mx.array_equal(load_weights(tmp_path)(tokens), model(tokens))
    assert "model, not 'gateloop'" in refusal(load_model, tmp_path)


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
def test_mlx_lm_quantizes_tunes_and_fuses(name, tmp_path):
    save_family_model(tmp_path / "model", name)

    def main(*words):
        assert cli.main(["mlx-lm", *map(str, words)]) == 0

    main("convert", "--hf-path", tmp_path / "model", "--mlx-path", tmp_path / "q8", "-q",
         "--q-bits", 8, "--q-group-size", 32)  # fmt: skip
    assert 0.9995 < quality(tmp_path / "q8", tmp_path / "model") < 1

    rows = [json.dumps({"text": line}) for line in TEXT.splitlines()[:16]]
    for part in ("train", "valid"):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows))
    where = ["--model", tmp_path / "model", "--adapter-path", tmp_path / "adapters"]
    main("lora", "--train", *where, "--data", tmp_path, "--iters", 3, "--batch-size", 2,
         "--num-layers", 2, "--learning-rate", 1e-3)  # fmt: skip
    main("fuse", *where, "--save-path", tmp_path / "fused")
    tuned = logits(tmp_path / "model", adapter_path=str(tmp_path / "adapters"))
    assert np.abs(tuned - logits(tmp_path / "model")).max() > 1e-3
    np.testing.assert_allclose(logits(tmp_path / "fused"), tuned, atol=2e-4)
