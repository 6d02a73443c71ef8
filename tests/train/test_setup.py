"""The model that a run starts with."""

from unittest.mock import Mock

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.commands import fails
from helpers.errors import refusal
from helpers.family import save_family_model
from helpers.models import save_tiny_model, tiny_model
from helpers.recurrent import save_recurrent_model
from helpers.training import TINY, tiny_run

import mlx_gateloop as gl
from mlx_gateloop.distributed.world import ALONE
from mlx_gateloop.model.gates import StateTransitionLinear
from mlx_gateloop.tokenizer import byte_tokenizer
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.train.setup import Trainer, make_model, make_source


def test_the_weights_of_linear_layers_are_scaled_but_not_the_transitions():
    config = {"steps": 1, "model": {"hidden_size": 8, "intermediate_size": 8}}
    configs = (TrainConfig.load(None, config | {"initial_scale": x}) for x in (1.0, 0.5))
    ours, smaller = (make_model(each, 16) for each in configs)
    pairs = list(zip(ours.named_modules(), smaller.named_modules(), strict=True))
    assert sum(isinstance(layer, nn.Linear) for (_, layer), _ in pairs) > 10
    for (name, layer), (_, other) in pairs:
        scaled = isinstance(layer, nn.Linear) and not isinstance(layer, StateTransitionLinear)
        if isinstance(layer, nn.Linear | nn.Embedding | nn.LayerNorm):
            assert mx.array_equal((0.5 if scaled else 1.0) * layer.weight, other.weight), name


def start(folder, name="gla_grouped", **changes):
    """Save a model that runs start from, and make their configuration."""
    model = save_family_model(folder / "start", name)
    keys = {key: value for key, value in TINY.items() if not key.startswith(("model", "token"))}
    config = keys | {"weights": str(folder / "start"), "steps": 6} | changes
    return model, TrainConfig.load(None, config)


def test_a_run_starts_from_the_weights_of_a_directory(tmp_path, text_file):
    model, config = start(tmp_path, "hgrn2", checkpoint_blocks=True, dtype="bfloat16")
    source = make_source(config, str(text_file))
    before = source.evaluate(model, ALONE).loss_nats
    trainer = Trainer(config, source)
    assert type(trainer.model) is type(model)
    assert trainer.model.model.recomputes_blocks
    assert source.evaluate(trainer.model, ALONE).loss_nats == pytest.approx(before)
    assert trainer.step(0)[0] == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(("save", "rank"), [
    (save_tiny_model, None), (save_tiny_model, 2), (lambda path: save_family_model(path, "gla"), 2),
])  # fmt: skip
def test_a_run_from_weights_computes_in_its_dtype(save, rank, text_file, tmp_path, monkeypatch):
    save(tmp_path / "start")
    changes = {"model": {}, "tokenizer__kind": "sentencepiece", "dtype": "bfloat16"}
    config = tiny_run(**changes, weights=str(tmp_path / "start"), lora_rank=rank)
    loss = Mock(side_effect=lambda logits, _: logits.sum())
    monkeypatch.setattr("mlx_gateloop.train.step.summed_cross_entropy", loss)
    Trainer(config, make_source(config, str(text_file))).step(0)
    assert {call.args[0].dtype for call in loss.call_args_list} == {mx.bfloat16}


def test_a_new_model_of_the_family_learns(text_file, tmp_path, without_pictures):
    shape = TINY["model"] | {"model_type": "hgrn", "hidden_size": 32}
    del shape["dropout"]
    config = TrainConfig.load(None, TINY | {"model": shape, "steps": 30, "eval_every": 10})
    result = train(config, str(text_file), tmp_path / "out")
    trained, _ = gl.load(tmp_path / "out")
    assert trained.args.model_type == "hgrn"
    assert result.best_loss < np.log(256) - 1


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": {"model_type": "mamba"}}, "unknown model.model_type 'mamba'"),
    ({"model": {"model_type": ["gla"]}}, "unknown model.model_type"),
    ({"model": {"model_type": "gla", "preset": "demo"}}, "model.preset: leave it out"),
    ({"model": {"model_type": "gla", "gate": "real"}}, "unknown key model.gate"),
    ({"model": {"model_type": "hgrn2", "hidden_size": 7}}, "model.expand_ratio: expected"),
    ({"weights": "nowhere"}, "weights: no model directory at"),
    ({"weights": "nowhere", "start": "spread"}, "start: must be published with weights"),
    ({"weights": "nowhere", "sequence_chunk": 8}, "sequence_chunk: must be None with weights"),
    ({"lora_rank": 2}, "lora_rank needs weights"),
])  # fmt: skip
def test_an_unusable_start_is_named(changes, message):
    assert message in refusal(TrainConfig.load, None, TINY | changes)


def test_another_type_and_a_shape_beside_it_are_refused(text_file, tmp_path, capsys):
    save_recurrent_model(tmp_path / "llama", "llama")
    config = start(tmp_path, weights=str(tmp_path / "llama"), checkpoint_blocks=True)[1]
    message = refusal(make_model, config, 16)
    assert "checkpoint_blocks needs a model of 'gateloop' or 'gla'" in message
    gl.save(tiny_model(mixer="softmax", transition="none"), byte_tokenizer(), tmp_path / "soft")
    config = start(tmp_path, weights=str(tmp_path / "soft"), carry_state=True)[1]
    assert "carry_state needs a model of 'gateloop'" in refusal(make_model, config, 16)
    (tmp_path / "run.yaml").write_text(f"weights: {tmp_path / 'start'}")
    for how in ("--weights demo", f"--weights {tmp_path}/start", f"--config {tmp_path}/run.yaml"):
        words = f"train {how} --set model.dropout=0.1 --dry-run --data {text_file}".split()
        assert "--weights: the directory decides model.dropout" in fails(capsys, *words)


def test_a_model_beyond_memory_is_refused(text_file):
    config = tiny_run(model={"hidden_size": 400_000})
    message = refusal(Trainer, config, make_source(config, str(text_file)))
    assert message.startswith("the model: needs ")
