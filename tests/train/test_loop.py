import errno
import os
import re
import shutil
import signal
from math import log
from pathlib import Path

import mlx.core as mx
import pytest
from helpers.cases import first
from helpers.errors import refusal
from helpers.experiments import names
from helpers.training import LAST, interrupted, same_arrays, tiny_run
from mlx_lm import load as load_with_mlx_lm

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.data import Batches
from mlx_gateloop.io.files import locked
from mlx_gateloop.train import TrainConfig, train
from mlx_gateloop.train.checkpoint import read_header, read_newest
from mlx_gateloop.train.loop import MAX_SKIPPED_IN_A_ROW
from mlx_gateloop.train.optimizer import cosine_with_warmup

TIMES = {"tokens_per_second", "memory_gb", "seconds"}
SAVED = {"last.safetensors", "previous.safetensors"}


@pytest.fixture(autouse=True)
def surroundings():
    """A run leaves MLX's limit of its cache and the handler of Ctrl-C as they were."""
    before = mx.set_cache_limit(12345678)
    yield
    assert mx.set_cache_limit(before) == 12345678
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def run(text_file, out, without_pictures):
    def run(target=out, resume=False, **changes):
        return train(tiny_run(**changes), str(text_file), target, resume)

    return run


def fails(run, words, *arguments, **options):
    assert re.search(words, refusal(run, *arguments, **options))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, text_file):
    out = tmp_path_factory.mktemp("straight") / "out"
    result = train(tiny_run(), str(text_file), out)
    assert (result.steps, result.skipped) == (12, 0)
    (out / "curves.png").unlink()
    return out


def log_of(out):
    """The log without times, which differ from run to run."""
    records = read_json_lines(out / "log.jsonl")
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same_run(one, other):
    """Weights, optimizer, random state, step, best model and log, to the last bit."""
    assert log_of(one) == log_of(other)
    for name in (LAST, "model.safetensors"):
        same_arrays(one / name, other / name)
    files = [{path.relative_to(out) for path in out.rglob("*")} for out in (one, other)]
    assert files[0] == files[1]


def snapshot(out):
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_output_directory_is_a_model_with_its_run(tmp_path, text_file, out):
    config = tiny_run(dtype="bfloat16")
    result = train(config, str(text_file), out)
    assert names(out / "checkpoints") == SAVED
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert TrainConfig.load(out / "config.yaml") == config
    assert read_header(out / LAST)[0].step == 12

    records = log_of(out)
    assert [r["step"] for r in records if "loss" in r] == [2, 4, 6, 8, 10, 12]
    validations = {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}
    assert list(validations) == [6, 12]
    assert result.best_loss == min(validations.values())
    bits = [r["bits_per_byte"] for r in records if "validation_loss" in r]
    assert min(bits) == pytest.approx(result.best_loss / log(2), rel=0.01)

    # The best weights, in bfloat16, where our loader makes float32.
    model, _ = load_with_mlx_lm(str(out), model_config={"model_file": None})
    assert model.lm_head.weight.dtype == mx.bfloat16
    kept = mx.load(str(out / LAST))["model.lm_head.weight"]
    assert kept.dtype == mx.float32, "validation in bfloat16 leaves the optimizer's weights alone"
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("changes", first(3, [
    {}, {"optimizer__accumulate": 2, "dtype": "bfloat16"},
    {"carry_state": True, "sequence_chunk": 20, "model__dropout": 0},
    {"tokenizer__kind": "sentencepiece", "tokenizer__vocab_size": 340},
    {"optimizer__name": "muon", "optimizer__phase_share": 0.3},
    {"carry_state": True, "model__conv_size": 3, "model__dropout": 0, "dtype": "bfloat16"},
]), ids=["bytes", "bfloat16", "carried", "sentencepiece", "muon", "carried bfloat16"])  # fmt: skip
def test_ctrl_c_and_resume_is_the_whole_run(tmp_path, run, out, changes, straight):
    if changes:
        straight = tmp_path / "straight"
        run(straight, **changes)
    for number, pressed in ((5, 1), (3, 3)):  # between checkpoints and log records
        line = interrupted(Batches, number, run, times=pressed, resume=number == 3, **changes)
        assert re.search(r"interrupted at step \d+ of 12.*--resume", line)
        if number == 5 and not changes:  # a log line after the checkpoint, and half of one
            with (out / "log.jsonl").open("a") as file:
                file.write('{"step": 6, "loss": 1.0}\n{"step": 7, "lo')
    mx.random.seed(99)
    assert run(resume=True, **changes).steps == 12
    assert_same_run(straight, out)


def test_float16_skips_overflows_and_resumes_exactly(tmp_path, run, out, monkeypatch, capsys):
    """The scale doubles after two steps, and halves after an overflow."""
    monkeypatch.setattr("mlx_gateloop.train.loop.STEPS_AT_SCALE", 2)
    changes = {"dtype": "float16", "steps": 16, "log_every": 1}
    result = run(tmp_path / "straight", **changes)
    assert 2 < result.skipped < 10
    lines = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(lines) == result.skipped
    assert "gradient is not finite; the loss scale is now" in lines[0]
    records = [record for record in log_of(tmp_path / "straight") if "loss" in record]
    scale, finite, skipped = 2.0**16, 0, 0
    for record in records:
        finite = finite + 1 if record["skipped"] == skipped else 0
        scale, skipped = scale * {0: 0.5, 2: 2}.get(finite, 1), record["skipped"]
        finite %= 2
        assert record["loss_scale"] == scale
    schedule = cosine_with_warmup(1e-2, 1, 16)  # skipped steps do not delay it
    rates = [schedule(step) for step in range(16)]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)

    interrupted(Batches, 10, run, **changes)
    run(resume=True, **changes)
    assert_same_run(tmp_path / "straight", out)


def test_interrupted_before_any_validation_leaves_a_trained_model(run, out, monkeypatch, capsys):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", lambda *_: 1 / 0)
    assert re.search(r"step 1 of 12.*--resume", interrupted(Batches, 1, run, log_every=10))
    assert "curves.png: not drawn: division by zero" in capsys.readouterr().err
    assert (out / "log.jsonl").read_text() == ""
    last, saved = (mx.load(str(out / name)) for name in (LAST, "model.safetensors"))
    assert mx.array_equal(saved["lm_head.weight"], last["model.lm_head.weight"])


def test_a_reader_who_leaves_ends_no_run(straight, run, out, monkeypatch):
    with Path(os.devnull).open() as stderr:  # which cannot be written
        monkeypatch.setattr("sys.stderr", stderr)
        run()
    assert_same_run(straight, out)


def test_killed_before_the_first_checkpoint_leaves_nothing_in_the_way(run, out):
    """tests/faults kills such runs; this is what is left of one."""
    for left in (".saving/model.safetensors", "checkpoints/.last-0123abcd.safetensors"):
        (out / left).parent.mkdir(parents=True)
        (out / left).write_text("half")
    (out / "log.jsonl").write_text("")
    fails(run, "already holds other files")
    (out / ".starting").touch()
    fails(run, "no checkpoint to resume", resume=True)
    with locked(out):  # by a run that is starting
        fails(run, "another process is writing there")
    assert run(steps=2).steps == 2
    assert names(out / "checkpoints") == SAVED
    assert not list(out.rglob(".*"))


def test_a_directory_with_a_run_is_left_alone(run, text_file, out, straight):
    fails(run, "not a directory", text_file)
    fails(run, "is not a folder to write in", text_file / "run")
    fails(run, "no checkpoint to resume", resume=True)
    shutil.copytree(straight, out)
    before = snapshot(out)
    fails(run, "already holds another run")
    for words, changes in {
        "differs in seed: it had 0, now it is 5": {"seed": 5},
        "differs in steps: it had 12, now it is 13; to train longer, start a new": {"steps": 13},
        "differs in model.hidden_size: it had 16, now it is 24": {"model__hidden_size": 24},
        "differs in data.validation_fraction": {"data__validation_fraction": 0.3},  # and its parts
    }.items():
        fails(run, words, resume=True, **changes)
    other = out.with_name("other.txt")
    other.write_text(text_file.read_text()[::-1])
    assert "differs in its data" in refusal(train, tiny_run(), str(other), out, resume=True)
    with locked(out):
        fails(run, "another process is writing there", resume=True)
    assert snapshot(out) == before
    for name in SAVED:
        path = out / "checkpoints" / name
        path.write_bytes(path.read_bytes()[:-100])
    before = snapshot(out)
    words = r"last.safetensors: truncated.*previous.safetensors: truncated.*another directory"
    fails(run, words, resume=True)
    assert snapshot(out) == before


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1000] ^= 16
    path.write_bytes(content)


def test_a_resumed_run_writes_again_what_it_has_lost(straight, run, out):
    shutil.copytree(straight, out)
    for name in ("model.safetensors", "config.yaml"):
        (out / name).unlink()
    result = run(resume=True)
    same_arrays(straight / "model.safetensors", out / "model.safetensors")  # its last are its best
    *before, last = log_of(straight)
    assert log_of(out) == [*before, last, last]
    assert result.best_loss == last["validation_loss"]
    assert TrainConfig.load(out / "config.yaml") == tiny_run()


@pytest.mark.parametrize("damage", [flip, os.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(straight, run, out, capsys, damage):
    shutil.copytree(straight, out)
    damage(out / LAST)
    run(resume=True)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "previous" in line]
    assert said.endswith("continuing from previous.safetensors, step 9")
    assert_same_run(out, straight)
    assert read_newest((out / LAST).with_stem("previous"))[1].step == 9, "the damaged one is gone"


@pytest.mark.parametrize("where", ["mlx.core.save_safetensors", "pathlib.Path.replace"])
def test_full_disk_at_the_start_leaves_nothing(tmp_path, out, run, monkeypatch, where):
    def full_disk(*args, **kwargs):
        assert (out / ".starting").exists(), "by which a killed run may start again"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(where, full_disk)
    fails(run, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_patience_stops_a_run_that_no_longer_improves(run):
    changes = {"optimizer__learning_rate": 1e-30, "eval_every": 2, "patience": 2}
    assert run(**changes).steps == run(**changes, resume=True).steps == 6


def test_a_run_that_diverges_stops_with_advice(run, out):
    changes = {"optimizer__learning_rate": 1e30, "optimizer__warmup_steps": 0, "eval_every": 60}
    words = f"{MAX_SKIPPED_IN_A_ROW} steps in a row .*learning_rate"
    fails(run, words, steps=60, dtype="float16", **changes)
    skipped = [r["skipped"] for r in log_of(out) if "skipped" in r]
    assert log_of(out)[-1]["loss_scale"] == 1
    assert skipped == sorted(skipped)
    assert skipped[-1] >= MAX_SKIPPED_IN_A_ROW - 3
