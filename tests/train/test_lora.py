"""Tuned weights and LoRA adapters, of ours, of the family and of mlx-lm's recurrent models."""

import json

import mlx.core as mx
import numpy as np
import pytest
from helpers.family import save_family_model
from helpers.models import save_tiny_model
from helpers.recurrent import save_recurrent_model
from helpers.training import press_ctrl_c, same_arrays, tiny_run
from mlx.utils import tree_flatten
from mlx_lm import load as load_with_mlx_lm

from mlx_gateloop.data import Batches
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.io.models import load_any
from mlx_gateloop.train import Interrupted, train

SAVE = {
    "gateloop": lambda path: save_tiny_model(path),
    "gla": lambda path: save_family_model(path, "gla"),
    "mamba2": lambda path: save_recurrent_model(path, "mamba2", head_dim=16),
    "recurrent_gemma": lambda path: save_recurrent_model(path, "recurrent_gemma"),
}
TUNE = {"model": {}, "tokenizer__kind": "sentencepiece", "optimizer__weight_decay": None}
TUNE |= {"eval_every": 3, "optimizer__learning_rate": 3e-3}


@pytest.fixture
def texts(tmp_path):
    """Documents of unequal length, one a line."""
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": "so calm, " * (1 + n % 7)}) for n in range(40)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(params=SAVE)
def start(request, tmp_path):
    SAVE[request.param](tmp_path / "start")
    return tmp_path / "start"


@pytest.mark.parametrize("rank", [2, None], ids=["lora", "weights"])
def test_a_model_is_tuned_and_resumed_bit_for_bit(
    start, texts, tmp_path, rank, monkeypatch, without_pictures
):
    config = tiny_run(**TUNE, weights=str(start), lora_rank=rank)
    straight, out = tmp_path / "straight", tmp_path / "out"
    before = (start / "model.safetensors").read_bytes()
    result = train(config, texts, straight)
    records = [json.loads(line) for line in (straight / "log.jsonl").read_text().splitlines()]
    losses = [r["validation_loss"] for r in records if "validation_loss" in r]
    assert losses[-1] < losses[0] - 0.1
    assert result.best_loss == min(losses)
    for kind in (Batches, DocumentBatches):
        with monkeypatch.context() as patch:
            press_ctrl_c(patch, kind, 5)
            if not out.exists() and config.data.packed == (kind is Batches):
                with pytest.raises(Interrupted):
                    train(config, texts, out)
    train(config, texts, out, resume=True)
    names = [
        "checkpoints/last.safetensors",
        "adapters.safetensors" if rank else "model.safetensors",
    ]
    for name in names:
        same_arrays(straight / name, out / name)
    assert (start / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["gateloop", "mamba2"])
def test_mlx_lm_loads_what_was_tuned(name, texts, tmp_path, without_pictures):
    SAVE[name](tmp_path / "start")
    prompt = mx.array([[7, 8, 9]])
    logits = []
    for rank in (2, None):
        out = tmp_path / f"out{rank}"
        train(tiny_run(**TUNE, weights=str(tmp_path / "start"), lora_rank=rank), texts, out)
        place, adapter = (str(tmp_path / "start"), str(out)) if rank else (str(out), None)
        how = {"model_config": {"model_file": None}, "adapter_path": adapter}
        logits.append(load_with_mlx_lm(place, **how)[0](prompt))
    plain = load_any(tmp_path / "start")[0](prompt)
    for tuned in logits:
        assert mx.abs(tuned - plain).max() > 1e-3
    adapters = mx.load(str(tmp_path / "out2" / "adapters.safetensors"))
    assert all(".lora_" in key for key in adapters)


def test_the_weights_under_adapters_stay_as_they_are(texts, tmp_path, without_pictures):
    from mlx_gateloop.train.data import make_source
    from mlx_gateloop.train.setup import Trainer

    save_tiny_model(tmp_path / "start")
    config = tiny_run(**TUNE, weights=str(tmp_path / "start"), lora_rank=2)
    trainer = Trainer(config, make_source(config, texts))
    frozen = {k: np.array(x) for k, x in tree_flatten(trainer.model.parameters())}
    trainer.step(0)
    for key, x in tree_flatten(trainer.model.parameters()):
        assert (".lora_" in key) or np.array_equal(np.array(x), frozen[key]), key
