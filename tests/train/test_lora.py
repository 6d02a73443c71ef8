"""Tuned weights and LoRA adapters, of ours, of the family and of mlx-lm's recurrent models."""

from functools import partial
from unittest.mock import Mock

import mlx.core as mx
import pytest
from helpers.cases import first
from helpers.errors import refusal
from helpers.family import save_family_model
from helpers.models import save_tiny_model, tiny_model
from helpers.recurrent import save_recurrent_model
from helpers.training import LAST, interrupted, same_arrays, tiny_run
from mlx_lm import load as load_with_mlx_lm

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.data import Batches
from mlx_gateloop.data.packing import DocumentBatches
from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.train import train
from mlx_gateloop.train.lora import add_lora, save_lora

SAVE = {
    "gateloop": save_tiny_model,
    "gla": lambda path: save_family_model(path, "gla"),
    "mamba2": lambda path: save_recurrent_model(path, "mamba2", head_dim=16),
}
TUNE = {"model": {}, "tokenizer__kind": "sentencepiece", "optimizer__weight_decay": None}
TUNE |= {"eval_every": 3, "optimizer__learning_rate": 3e-3}


@pytest.mark.parametrize(("name", "rank"), first(2, [
    ("gateloop", 2), ("mamba2", None), ("gateloop", None), ("gla", 2),
    ("recurrent_gemma", 2), ("mamba", 2), ("falcon_mamba", None),
]))  # fmt: skip
def test_tuning_is_resumed_bit_for_bit(name, rank, tmp_path, without_pictures):
    start, straight, out = (tmp_path / name for name in ("start", "straight", "out"))
    SAVE.get(name, partial(save_recurrent_model, name=name))(start)
    (start / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    texts = tmp_path / "texts.jsonl"  # their lengths differ
    texts.write_text("".join(f'{{"text": "{"so calm, " * (1 + n % 7)}"}}\n' for n in range(40)))
    config = tiny_run(**TUNE, weights=str(start), lora_rank=rank)
    result = train(config, str(texts), straight)
    records = read_json_lines(straight / "log.jsonl")
    losses = [r["validation_loss"] for r in records if "validation_loss" in r]
    assert losses[-1] < losses[0] - 0.1
    assert result.best_loss == min(losses)
    batches = Batches if config.data.packed else DocumentBatches
    interrupted(batches, 5, train, config, str(texts), out)
    start = start.rename(tmp_path / "moved")
    config = tiny_run(**TUNE, weights=str(start), lora_rank=rank)
    train(config, str(texts), out, resume=True)
    saved = "adapters.safetensors" if rank else "model.safetensors"
    settings = [(folder / "tokenizer_config.json").read_text() for folder in (straight, out)]
    assert settings[0] == settings[1]
    for file in (LAST, saved):
        same_arrays(straight / file, out / file)
    if rank:  # nothing else is learned
        assert all(".lora_" in key for key in mx.load(str(out / saved)))
    how = {"model_config": {"model_file": None}}
    plain = load_with_mlx_lm(str(start), **how)[0]
    how |= {"adapter_path": str(out)} if rank else {}
    tuned, tokenizer = load_with_mlx_lm(str(start if rank else out), **how)
    assert tokenizer.eos_token_ids >= {5, 7}
    assert mx.abs(tuned(mx.array([[7, 8]])) - plain(mx.array([[7, 8]]))).max() > 1e-3
    (start / "config.json").write_text((start / "config.json").read_text() + "\n")
    assert "differs in its weights" in refusal(train, config, str(texts), out, resume=True)


def test_a_full_disk_leaves_the_old_adapters(tmp_path, monkeypatch):
    model, tokenizer = tiny_model(), byte_tokenizer()
    add_lora(model, 2)
    save_lora(model, tokenizer, 2, tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    full = Exception("No space left on device")  # as tokenizers raises it
    monkeypatch.setattr(tokenizer, "save_pretrained", Mock(side_effect=full))
    assert "free space there" in refusal(save_lora, model, tokenizer, 2, tmp_path)
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}
