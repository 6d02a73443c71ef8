import errno
import json
import os
import pydoc_data.topics
import signal
from collections import Counter
from math import log

import mlx.core as mx
import numpy as np
import pytest
from helpers.training import press_ctrl_c, same_arrays
from mlx_lm import load as load_with_mlx_lm

from mlx_gateloop import load
from mlx_gateloop.data import Batches
from mlx_gateloop.errors import InputError
from mlx_gateloop.train import Interrupted, TrainConfig, train
from mlx_gateloop.train.checkpoint import read_header
from mlx_gateloop.train.evaluate import evaluate
from mlx_gateloop.train.loop import MOST_SKIPPED_IN_A_ROW
from mlx_gateloop.train.loss_scale import INITIAL
from mlx_gateloop.train.optimizer import cosine_with_warmup

TIMES = {"tokens_per_second", "memory_gb", "seconds"}
SAVED = {"last.safetensors", "previous.safetensors"}
FILES = {"checkpoints", "config.json", "config.yaml", "log.jsonl", "model.safetensors"}


def log_of(out):
    """The log without times, which differ from run to run."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same_run(one, other):
    """Weights, optimizer, random state, step, best model and log, to the last bit."""
    assert log_of(one) == log_of(other)
    for name in ("checkpoints/last.safetensors", "model.safetensors"):
        same_arrays(one / name, other / name)


def names_in(directory):
    return {path.name for path in directory.iterdir()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text_file, tiny):
    """The undisturbed run."""
    out = tmp_path_factory.mktemp("straight") / "out"
    result = train(tiny(), str(text_file), out)
    assert (result.steps, result.skipped, result.stopped_early) == (12, 0, False)
    return out


def test_learns_more_than_letter_frequencies(tmp_path):
    """A byte model that only counts can't get below the unigram entropy of the validation text."""
    text = "".join(pydoc_data.topics.topics.values())[:60000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    settings = {
        "model": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64},
        "tokenizer.kind": "bytes",
        "data.length": 64,
        "data.batch_size": 8,
        "optimizer.learning_rate": 0.015,
        "steps": 120,
        "eval_every": 120,
    }
    result = train(TrainConfig.load(None, settings), str(tmp_path / "text.txt"), tmp_path / "out")
    held_out = text.encode()[-len(text) // 10 :]
    counts = np.array(list(Counter(held_out).values())) / len(held_out)
    assert result.best_loss < -(counts * np.log(counts)).sum() - 0.3
    assert result.last.bits_per_byte == pytest.approx(result.last.loss_nats / log(2), rel=0.01)


def test_output_directory_is_a_model_with_its_run(tmp_path, text_file, tiny):
    out, config = tmp_path / "out", tiny(dtype="bfloat16")
    result = train(config, str(text_file), out)
    assert names_in(out / "checkpoints") == SAVED
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert TrainConfig.load(out / "config.yaml") == config
    assert read_header(out / "checkpoints" / "last.safetensors")[0].step == 12

    records = log_of(out)
    assert [r["step"] for r in records if "loss" in r] == [2, 4, 6, 8, 10, 12]
    validations = [r for r in records if "validation_loss" in r]
    assert [r["step"] for r in validations] == [6, 12]
    assert result.best_loss == min(r["validation_loss"] for r in validations)

    # The best weights, in bfloat16, where our loader makes float32.
    model, tokenizer = load_with_mlx_lm(str(out), model_config={"model_file": None})
    assert model.lm_head.weight.dtype == mx.bfloat16
    kept = mx.load(str(out / "checkpoints" / "last.safetensors"))["model.lm_head.weight"]
    assert kept.dtype == mx.float32, "validation in bfloat16 leaves the optimizer's weights alone"
    held_out = text_file.read_text()[5400:]
    tokens = np.array(tokenizer.encode(held_out))
    again = evaluate(model, tokens, len(held_out), length=32, batch_size=4)
    assert again.loss_nats == pytest.approx(result.best_loss, abs=0.05)
    assert names_in(tmp_path) == {"out"}


@pytest.mark.usefixtures("without_pictures")
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
    tmp_path, text_file, tiny, monkeypatch, changes, straight
):
    config, parts = tiny(**changes), tmp_path / "parts"
    if changes:
        straight = tmp_path / "straight"
        train(config, str(text_file), straight)
    for number, pressed in ((5, 1), (3, 2)):  # between checkpoints and log records
        with monkeypatch.context() as patch:
            press_ctrl_c(patch, Batches, number, pressed)
            with pytest.raises(Interrupted, match=r"interrupted at step \d+ of 12.*--resume"):
                train(config, str(text_file), parts, resume=number == 3)
        if number == 5 and not changes:  # a log line after the checkpoint, and half of one
            with (parts / "log.jsonl").open("a") as file:
                file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    mx.random.seed(99)
    assert train(config, str(text_file), parts, resume=True).steps == 12
    assert_same_run(straight, parts)


@pytest.mark.usefixtures("without_pictures")
def test_float16_skips_overflows_and_resumes_exactly(
    tmp_path, text_file, tiny, monkeypatch, capsys
):
    """With a scale that grows at every step, gradients overflow after a few and then in turns."""
    monkeypatch.setattr("mlx_gateloop.train.loss_scale.INTERVAL", 1)
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


@pytest.mark.usefixtures("without_pictures")
def test_ctrl_c_in_the_last_step_leaves_a_finished_run(tmp_path, text_file, tiny, monkeypatch):
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, Batches, 4)
        result = train(tiny(steps=4), str(text_file), tmp_path / "out")
    assert (result.steps, result.stop_requested) == (4, True)
    again = train(tiny(steps=4), str(text_file), tmp_path / "out", resume=True)
    assert (again.steps, again.stop_requested) == (4, False)


def test_interrupted_before_any_validation_leaves_a_trained_model(
    tmp_path, text_file, tiny, monkeypatch
):
    press_ctrl_c(monkeypatch, Batches, 1)
    with pytest.raises(Interrupted, match=r"step 1 of 12.*--resume"):
        train(tiny(log_every=10), str(text_file), tmp_path / "out")
    assert (tmp_path / "out" / "log.jsonl").read_text() == ""
    last = mx.load(str(tmp_path / "out" / "checkpoints" / "last.safetensors"))
    saved = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert mx.array_equal(saved["lm_head.weight"], last["model.lm_head.weight"])


@pytest.mark.usefixtures("without_pictures")
def test_killed_before_the_first_checkpoint_leaves_nothing_in_the_way(tmp_path, text_file, tiny):
    """tests/faults kills such runs; this is what is left of one."""
    out = tmp_path / "out"
    for left in (".saving/model.safetensors", "checkpoints/.last-0123abcd.safetensors"):
        (out / left).parent.mkdir(parents=True)
        (out / left).write_text("half")
    (out / "log.jsonl").write_text("")
    with pytest.raises(InputError, match="already holds other files"):
        train(tiny(steps=2), str(text_file), out)
    (out / ".starting").touch()
    with pytest.raises(InputError, match="no checkpoint to resume"):
        train(tiny(steps=2), str(text_file), out, resume=True)
    assert train(tiny(steps=2), str(text_file), out).steps == 2
    assert names_in(out / "checkpoints") == SAVED
    assert {name for name in names_in(out) if name.startswith(".")} == set()
    assert names_in(out) > FILES


def test_a_picture_that_fails_ends_no_run(tmp_path, text_file, tiny, monkeypatch, capsys):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: 1 / 0)
    assert train(tiny(steps=1), str(text_file), tmp_path / "out").steps == 1
    assert "curves.png: not drawn: division by zero" in capsys.readouterr().err


def test_a_directory_with_a_run_is_left_alone(tmp_path, text_file, tiny, straight):
    def snapshot():
        return {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()}

    before = snapshot()

    def fails(words, text=text_file, resume=True, **changes):
        with pytest.raises(InputError, match=words) as caught:
            train(tiny(**changes), str(text), straight, resume=resume)
        assert "\n" not in str(caught.value)
        assert snapshot() == before

    fails("already holds another run", resume=False)
    fails("differs in seed: it had 0, now it is 5", seed=5)
    fails("differs in steps: it had 12, now it is 13; to train longer, start a new", steps=13)
    fails("differs in model.hidden_size: it had 16, now it is 24", model__hidden_size=24)
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[::-1])
    fails("differs in its data", text=other)
    whole, paths = before, [straight / "checkpoints" / name for name in sorted(SAVED)]
    try:
        for path in paths:
            path.write_bytes(before[path][:-100])
        before = snapshot()
        fails(r"last.safetensors: truncated.*previous.safetensors: truncated.*another directory")
    finally:
        for path in paths:
            path.write_bytes(whole[path])


def test_unusable_directories(tmp_path, text_file, tiny):
    with pytest.raises(InputError, match="no checkpoint to resume"):
        train(tiny(), str(text_file), tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="already holds other files"):
        train(tiny(), str(text_file), text_file.parent)
    assert list(text_file.parent.iterdir()) == [text_file]
    with pytest.raises(InputError, match="not a directory"):
        train(tiny(), str(text_file), text_file)


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["mlx.core.save_safetensors", "pathlib.Path.replace"])
def test_full_disk_at_the_start_leaves_nothing(tmp_path, text_file, tiny, monkeypatch, where):
    monkeypatch.setattr(where, full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        train(tiny(), str(text_file), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("without_pictures")
def test_full_disk_later_keeps_the_last_checkpoint(
    tmp_path, text_file, tiny, monkeypatch, straight
):
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
    with monkeypatch.context() as patch:
        patch.setattr("mlx_gateloop.train.output.json.dumps", full_disk)
        with pytest.raises(InputError, match="No space left on device"):
            train(tiny(), str(text_file), out, resume=True)
    train(tiny(), str(text_file), out, resume=True)
    assert_same_run(straight, out)


@pytest.mark.usefixtures("without_pictures")
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


@pytest.mark.usefixtures("without_pictures")
def test_cache_limit_is_put_back(tmp_path, text_file, tiny):
    before = mx.set_cache_limit(12345678)
    try:
        train(tiny(steps=1), str(text_file), tmp_path / "out")
        assert mx.set_cache_limit(before) == 12345678
    finally:
        mx.set_cache_limit(before)
