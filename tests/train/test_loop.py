import errno
import json
import os
import pydoc_data.topics
import signal
import subprocess
import sys
import time
from collections import Counter
from math import log

import mlx.core as mx
import numpy as np
import pytest
import yaml
from helpers.training import press_ctrl_c, same_arrays
from mlx_lm import load as load_with_mlx_lm

from mlx_gateloop import load
from mlx_gateloop.data import Batches
from mlx_gateloop.errors import InputError
from mlx_gateloop.train import Interrupted, TrainConfig, train
from mlx_gateloop.train.checkpoint import read_header, read_newest
from mlx_gateloop.train.evaluate import evaluate
from mlx_gateloop.train.loop import MOST_SKIPPED_IN_A_ROW
from mlx_gateloop.train.loss_scale import INITIAL
from mlx_gateloop.train.optimizer import cosine_with_warmup

TIMES = {"tokens_per_second", "memory_gb", "seconds"}
CHILD = """
import os, signal, sys, time
from itertools import count
from pathlib import Path
from mlx_gateloop.data.packing import Batches
from mlx_gateloop.train import TrainConfig, train
if sys.argv[4] == "at any time":  # but not at the end: it waits there
    numbers, draw = count(1), Batches.batch
    def batch(*arguments):
        if next(numbers) == 35:
            time.sleep(600)
        return draw(*arguments)
    Batches.batch = batch
else:
    saves = []
    original = Path.replace
    def replace(path, target):
        saves.extend([path] * path.name.startswith(".last"))
        if len(saves) == int(sys.argv[4].split()[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(path, target)
    Path.replace = replace
train(TrainConfig.load(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


def log_of(out):
    """The log without times, which differ from run to run."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same_run(one, other):
    """Weights, optimizer, random state, step, best model and log, to the last bit."""
    assert log_of(one) == log_of(other)
    for name in ("checkpoints/last.safetensors", "model.safetensors"):
        same_arrays(one / name, other / name)


def snapshot(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_learns_more_than_letter_frequencies(tmp_path):
    """A byte model that only counts can't get below the unigram entropy of the validation text."""
    text = "".join(pydoc_data.topics.topics.values())[:60000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    settings = {
        "model": {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96},
        "tokenizer.kind": "bytes",
        "data.length": 64,
        "data.batch_size": 8,
        "optimizer.learning_rate": 0.01,
        "steps": 200,
    }
    result = train(TrainConfig.load(None, settings), str(tmp_path / "text.txt"), tmp_path / "out")
    held_out = text.encode()[-len(text) // 10 :]
    entropy = -sum(
        count / len(held_out) * log(count / len(held_out)) for count in Counter(held_out).values()
    )
    assert result.best_loss < entropy - 0.4
    assert result.last.bits_per_byte == pytest.approx(result.last.loss_nats / log(2), rel=0.01)
    assert result.steps == 200


def test_output_directory_is_a_model_with_its_run(tmp_path, text_file, tiny):
    out = tmp_path / "out"
    result = train(tiny(dtype="bfloat16"), str(text_file), out)
    checkpoints = {path.name for path in (out / "checkpoints").iterdir()}
    assert checkpoints == {"last.safetensors", "previous.safetensors"}
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert TrainConfig.load(out / "config.yaml") == tiny(dtype="bfloat16")
    assert read_header(out / "checkpoints" / "last.safetensors")[0].step == 12

    records = log_of(out)
    assert [r["step"] for r in records if "loss" in r] == [2, 4, 6, 8, 10, 12]
    validations = [r for r in records if "validation_loss" in r]
    assert [r["step"] for r in validations] == [6, 12]
    assert result.best_loss == min(r["validation_loss"] for r in validations)

    model, tokenizer = load_with_mlx_lm(str(out))  # the best weights, in bfloat16
    assert model.lm_head.weight.dtype == mx.bfloat16
    kept = mx.load(str(out / "checkpoints" / "last.safetensors"))["model.lm_head.weight"]
    assert kept.dtype == mx.float32, "validation in bfloat16 leaves the optimizer's weights alone"
    held_out = text_file.read_text()[5400:]
    tokens = np.array(tokenizer.encode(held_out))
    again = evaluate(model, tokens, len(held_out), length=32, batch_size=4)
    assert again.loss_nats == pytest.approx(result.best_loss, abs=0.05)
    leftovers = {path.name for path in tmp_path.iterdir()} - {"out", "text.txt"}
    assert not leftovers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer__accumulate": 2, "dtype": "bfloat16"},
        {"tokenizer__kind": "sentencepiece", "tokenizer__vocab_size": 340},
    ],
    ids=["bytes", "accumulated bfloat16", "sentencepiece"],
)
def test_ctrl_c_and_resume_is_the_uninterrupted_run(
    tmp_path, text_file, tiny, monkeypatch, changes
):
    config = tiny(**changes)
    train(config, str(text_file), tmp_path / "straight")
    for number, pressed in ((5, 1), (3, 2)):  # between checkpoints and log records
        with monkeypatch.context() as patch:
            press_ctrl_c(patch, Batches, number, pressed)
            with pytest.raises(Interrupted, match=r"interrupted at step \d+ of 12.*--resume"):
                train(config, str(text_file), tmp_path / "parts", resume=number == 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    mx.random.seed(99)
    result = train(config, str(text_file), tmp_path / "parts", resume=True)
    assert result.steps == 12
    assert_same_run(tmp_path / "straight", tmp_path / "parts")


def test_float16_skips_overflows_and_resumes_exactly(
    tmp_path, text_file, tiny, monkeypatch, capsys
):
    """With a scale that grows at every step, gradients overflow after a few and then in turns."""
    monkeypatch.setattr("mlx_gateloop.train.loss_scale.INTERVAL", 1)
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)
    config = tiny(dtype="float16", steps=16, log_every=1)
    result = train(config, str(text_file), tmp_path / "straight")
    assert 2 < result.skipped < 10
    lines = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(lines) == result.skipped
    assert "gradient is not finite; the loss scale is now" in lines[0]
    records = [record for record in log_of(tmp_path / "straight") if "loss" in record]
    scales = [record["loss_scale"] for record in records]
    assert max(scales) > INITIAL
    assert scales != sorted(scales)
    schedule = cosine_with_warmup(1e-2, 1, 16)  # skipped steps do not delay it
    rates = [schedule(mx.array(step, mx.uint64)).item() for step in range(16)]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)

    with monkeypatch.context() as patch:
        press_ctrl_c(patch, Batches, 10)
        with pytest.raises(Interrupted):
            train(config, str(text_file), tmp_path / "parts")
    train(config, str(text_file), tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "straight", tmp_path / "parts")


def test_ctrl_c_in_the_last_step_leaves_a_finished_run(tmp_path, text_file, tiny, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: None)
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, Batches, 4)
        result = train(tiny(steps=4), str(text_file), tmp_path / "out")
    assert (result.steps, result.stop_requested) == (4, True)
    again = train(tiny(steps=4), str(text_file), tmp_path / "out", resume=True)
    assert (again.steps, again.stop_requested) == (4, False)


def test_interrupted_before_any_validation_leaves_a_trained_model(
    tmp_path, text_file, tiny, monkeypatch
):
    press_ctrl_c(monkeypatch, Batches, 4)
    with pytest.raises(Interrupted, match="step 4 of 12"):
        train(tiny(), str(text_file), tmp_path / "out")
    last = mx.load(str(tmp_path / "out" / "checkpoints" / "last.safetensors"))
    saved = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert mx.array_equal(saved["lm_head.weight"], last["model.lm_head.weight"])


def test_interrupted_before_anything_was_logged(tmp_path, text_file, tiny, monkeypatch):
    press_ctrl_c(monkeypatch, Batches, 1)
    with pytest.raises(Interrupted, match=r"step 1 of 12.*--resume"):
        train(tiny(log_every=10), str(text_file), tmp_path / "out")
    assert (tmp_path / "out" / "log.jsonl").read_text() == ""


@pytest.mark.parametrize(  # tests/faults kills a training at any time too
    "moment", [pytest.param("at any time", marks=pytest.mark.slow), "save 4"]
)
def test_killed_and_resumed_is_the_uninterrupted_run(tmp_path, text_file, tiny, moment):
    config = tiny(steps=40 if moment == "at any time" else 12)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.to_dict()))
    out = tmp_path / "killed"
    arguments = [str(tmp_path / "run.yaml"), str(text_file), str(out), moment]
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 600
        while moment == "at any time" and time.monotonic() < deadline and child.poll() is None:
            if (out / "log.jsonl").exists() and len((out / "log.jsonl").read_text()) > 600:
                break
            time.sleep(0.01)
        else:
            child.wait(600)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGKILL
    killed_at = read_newest(out / "checkpoints" / "last.safetensors")[1].step
    assert 0 < killed_at < config.steps
    if moment == "save 4":
        assert killed_at == 6
        assert list((out / "checkpoints").glob(".last-*.safetensors"))

    train(config, str(text_file), out, resume=True)
    train(config, str(text_file), tmp_path / "straight")
    assert_same_run(tmp_path / "straight", out)
    checkpoints = {path.name for path in (out / "checkpoints").iterdir()}
    assert checkpoints == {"last.safetensors", "previous.safetensors"}


def test_killed_before_the_first_checkpoint_leaves_nothing_in_the_way(tmp_path, text_file, tiny):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tiny(steps=2).to_dict()))
    out = tmp_path / "out"
    arguments = [str(tmp_path / "run.yaml"), str(text_file), str(out), "save 1"]
    child = subprocess.run([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.DEVNULL)
    assert child.returncode == -signal.SIGKILL
    assert not out.exists()
    assert train(tiny(steps=2), str(text_file), out).steps == 2
    assert not (tmp_path / ".out.starting").exists()


def test_a_half_written_log_line_is_cut_on_resume(tmp_path, text_file, tiny, monkeypatch):
    out = tmp_path / "out"
    press_ctrl_c(monkeypatch, Batches, 5)
    with pytest.raises(Interrupted):
        train(tiny(), str(text_file), out)
    with (out / "log.jsonl").open("a") as file:
        file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    train(tiny(), str(text_file), out, resume=True)
    steps = [record["step"] for record in log_of(out) if "loss" in record]
    assert steps == [2, 4, 6, 8, 10, 12]


def test_a_directory_with_a_run_is_left_alone(tmp_path, text_file, tiny):
    out = tmp_path / "out"
    config = tiny(steps=2)
    train(config, str(text_file), out)
    before = snapshot(out)

    def fails(words, text=text_file, resume=True, **changes):
        with pytest.raises(InputError, match=words) as caught:
            train(tiny(**({"steps": 2} | changes)), str(text), out, resume=resume)
        assert "\n" not in str(caught.value)
        assert snapshot(out) == before

    fails("already holds another run", resume=False)
    fails("differs in seed: it had 0, now it is 5", seed=5)
    fails("differs in model.hidden_size: it had 16, now it is 24", model__hidden_size=24)
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    fails("differs in its data", text=other)
    checkpoint = out / "checkpoints" / "last.safetensors"
    for name in ("last", "previous"):
        checkpoint.with_stem(name).write_bytes(before[checkpoint][:-100])
    before = snapshot(out)
    fails(r"last.safetensors: truncated.*previous.safetensors: truncated.*another directory")


def test_resume_needs_a_checkpoint(tmp_path, text_file, tiny):
    with pytest.raises(InputError, match="no checkpoint to resume"):
        train(tiny(), str(text_file), tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_other_files_is_left_alone(tmp_path, text_file, tiny):
    with pytest.raises(InputError, match="already holds other files"):
        train(tiny(), str(text_file), tmp_path)
    assert list(tmp_path.iterdir()) == [text_file]
    with pytest.raises(InputError, match="not a directory"):
        train(tiny(), str(text_file), text_file)


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_at_the_start_leaves_nothing(tmp_path, text_file, tiny, monkeypatch):
    monkeypatch.setattr(mx, "save_safetensors", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        train(tiny(), str(text_file), tmp_path / "out")
    assert list(tmp_path.iterdir()) == [text_file]


def test_full_disk_later_keeps_the_last_checkpoint(tmp_path, text_file, tiny, monkeypatch):
    out = tmp_path / "out"
    original, saves = mx.save_safetensors, []

    def save(file, *args):
        saves.append(file)
        return original(file, *args) if len(saves) < 4 else full_disk()

    with monkeypatch.context() as patch:
        patch.setattr(mx, "save_safetensors", save)
        with pytest.raises(InputError, match="No space left on device"):
            train(tiny(), str(text_file), out)
    assert read_header(out / "checkpoints" / "last.safetensors")[0].step == 3
    load(out)
    train(tiny(), str(text_file), out, resume=True)
    train(tiny(), str(text_file), tmp_path / "straight")
    assert_same_run(tmp_path / "straight", out)


def test_full_disk_for_the_log(tmp_path, text_file, tiny, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.output.json.dumps", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        train(tiny(), str(text_file), tmp_path / "out")


def test_patience_stops_a_run_that_no_longer_improves(tmp_path, text_file, tiny):
    config = tiny(optimizer__learning_rate=1e-30, eval_every=2, patience=2)
    result = train(config, str(text_file), tmp_path / "out")
    assert (result.steps, result.stopped_early) == (6, True)
    resumed = train(config, str(text_file), tmp_path / "out", resume=True)
    assert (resumed.steps, resumed.stopped_early, resumed.last) == (6, True, None)


def test_a_run_that_diverges_stops_with_advice(tmp_path, text_file, tiny):
    config = tiny(optimizer__learning_rate=1e30, steps=60, optimizer__warmup_steps=0, eval_every=60)
    with pytest.raises(InputError, match=f"{MOST_SKIPPED_IN_A_ROW} steps in a row .*learning_rate"):
        train(config, str(text_file), tmp_path / "out")
    skipped = [r["skipped"] for r in log_of(tmp_path / "out") if "skipped" in r]
    assert skipped == sorted(skipped)
    assert skipped[-1] >= MOST_SKIPPED_IN_A_ROW - 3


def test_cache_limit_is_put_back(tmp_path, text_file, tiny):
    before = mx.set_cache_limit(12345678)
    try:
        train(tiny(steps=1), str(text_file), tmp_path / "out")
        assert mx.set_cache_limit(before) == 12345678
    finally:
        mx.set_cache_limit(before)
