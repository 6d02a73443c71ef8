"""Training on a task: the same trainer, its batches and its score from somewhere else."""

import json

import pytest
from helpers.training import press_ctrl_c, same_arrays

from mlx_gateloop.data.memory_horizon import memory_horizon
from mlx_gateloop.data.recall import induction
from mlx_gateloop.data.task import SampleBatches
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.models import load_model
from mlx_gateloop.train import Interrupted, train
from mlx_gateloop.train.evaluate import evaluate_task


def sums(seed=0):
    sizes = {"length": 12, "resets": 1, "max_input": 1, "max_output": 1}
    return memory_horizon(**sizes, function="running_sum", samples=21, held_out=10, seed=seed)


def config_of(tiny, task, **changes):
    changes = {"model__num_outputs": task.num_outputs, "data__length": 12} | changes
    return tiny(model__dropout=0.0, eval_every=6, checkpoint_every=3, **changes)


def test_the_best_weights_score_as_the_log_says(tmp_path, tiny):
    task = sums()
    result = train(config_of(tiny, task, steps=60), task, tmp_path / "out")
    records = [
        json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().split("\n")[:-1]
    ]
    scores = {r["validation_loss"]: r["accuracy"] for r in records if "accuracy" in r}
    assert len(scores) == 10
    model = load_model(tmp_path / "out")
    score = evaluate_task(model, task.validation, 4)
    assert score.loss_nats == pytest.approx(result.best_loss, abs=1e-6) == min(scores)
    assert score.accuracy == scores[result.best_loss]
    assert score.accuracy > 0.7
    assert result.last.others.keys() == {"accuracy"}


@pytest.mark.parametrize(
    "make", [sums, lambda: induction(12, 4, 21, 10)], ids=["sums", "induction"]
)
def test_ctrl_c_and_resume_is_the_uninterrupted_run(tmp_path, tiny, monkeypatch, make):
    task = make()
    config = config_of(tiny, task)
    train(config, task, tmp_path / "straight")
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, SampleBatches, 5)
        with pytest.raises(Interrupted, match="interrupted at step 5 of 12"):
            train(config, task, tmp_path / "parts")
    train(config, task, tmp_path / "parts", resume=True)
    for name in ("checkpoints/last.safetensors", "model.safetensors"):
        same_arrays(tmp_path / "straight" / name, tmp_path / "parts" / name)


def test_other_samples_are_not_the_run_to_resume(tmp_path, tiny):
    config = config_of(tiny, sums(), steps=1)
    train(config, sums(), tmp_path / "out")
    with pytest.raises(InputError, match="differs in its data"):
        train(config, sums(seed=1), tmp_path / "out", resume=True)


def test_a_head_too_small_for_the_tokenizer_is_refused(tmp_path, tiny, text_file):
    with pytest.raises(InputError, match=r"num_outputs: at least the tokenizer's \d+ tokens"):
        train(tiny(model__num_outputs=2), str(text_file), tmp_path / "out")
    assert not (tmp_path / "out").exists()
