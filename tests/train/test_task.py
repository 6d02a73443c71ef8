"""Training on a task: the same trainer, its batches and its score from somewhere else."""

import mlx.nn as nn
import numpy as np
import pytest
from helpers.errors import refusal
from helpers.training import tiny_run

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.data.memory_horizon import memory_horizon
from mlx_gateloop.data.task import UNASKED, Samples
from mlx_gateloop.errors import InputError
from mlx_gateloop.io.models import load_model
from mlx_gateloop.train import train
from mlx_gateloop.train.task import TaskSource, evaluate_task


@pytest.mark.usefixtures("without_pictures")
def test_the_best_weights_score_as_the_log_says(tmp_path):
    sizes = {"length": 12, "resets": 1, "max_input": 1, "max_output": 1, "samples": 21}
    task = memory_horizon(**sizes, function="running_sum", held_out=10, seed=0)
    changes = {"model__num_outputs": task.num_outputs, "model__dropout": 0, "data__length": 12}
    config = tiny_run(**changes, steps=60, start="published")  # learns these sums in fewer steps
    result = train(config, task, tmp_path / "out")
    records = read_json_lines(tmp_path / "out" / "log.jsonl")
    scores = {r["validation_loss"]: r["accuracy"] for r in records if "accuracy" in r}
    assert len(scores) == 10
    score = evaluate_task(load_model(tmp_path / "out"), task.validation, 4)
    assert score.loss_nats == pytest.approx(result.best_loss, abs=1e-6) == min(scores)
    assert score.accuracy == scores[result.best_loss]
    assert score.accuracy > 0.7


def test_a_head_of_another_size_than_the_tokenizer_is_refused(tmp_path, text_file):
    for outputs in (2, 1000):
        with pytest.raises(InputError, match=r"num_outputs .*: must be the tokenizer's \d+ tokens"):
            train(tiny_run(model__num_outputs=outputs), str(text_file), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_no_state_is_carried_between_samples():
    config = tiny_run(carry_state=True, model__dropout=0)
    assert "samples of a task are apart" in refusal(TaskSource, config, None)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_a_task_is_scored_where_it_asks(batch_size):
    inputs = np.array([[0, 1, 2], [2, 2, 1], [1, 0, 0]], np.int32)
    embedding = nn.Embedding(3, 3)  # logits that depend on the last token alone
    model = nn.Sequential(embedding, nn.Dropout(0.5))
    table = np.array(embedding.weight, np.float64)
    log_probability = table - np.log(np.exp(table).sum(-1, keepdims=True))
    best = table.argmax(1)
    wrong = (best + 1) % 3
    targets = np.where(inputs == 1, wrong[inputs], best[inputs]).astype(np.int32)
    targets[0, 0] = targets[2, 1] = UNASKED
    asked = targets != UNASKED
    score = evaluate_task(model, Samples(inputs, targets, targets), batch_size)
    assert model.training, "the mode is put back"
    np.testing.assert_array_equal(score.right, asked & (inputs != 1))
    assert score.accuracy == 4 / 7
    nats = -log_probability[inputs[asked], targets[asked]].mean()
    assert score.loss_nats == pytest.approx(nats, rel=1e-5)
    assert score.others == {"accuracy": 4 / 7}
