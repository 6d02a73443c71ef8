"""Runs that fit a time, on clocks that do not depend on this machine."""

import re
from dataclasses import replace
from itertools import accumulate, count
from time import monotonic
from unittest.mock import Mock

import mlx.nn as nn
import pytest
from helpers.commands import fails
from helpers.errors import refusal
from helpers.training import LAST, same_arrays, tiny_run
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.train import TrainConfig, minutes, train
from mlx_gateloop.train.loop import Run
from mlx_gateloop.train.minutes import PIECES, Pace, choose, predicted_loss
from mlx_gateloop.train.optimizer import piecewise

BYTES = {"tokenizer.kind": "bytes"}


@settings(max_examples=30)
@given(
    first=st.floats(0.02, 50),
    changes=st.lists(st.floats(0.6, 1.6), min_size=200, max_size=200),
    guess=st.floats(0.3, 3),
)
def test_a_run_ends_in_time_whatever_else_the_machine_does(first, changes, guess):
    """At least 200 steps; their speed changes from piece to piece."""
    seconds, clock = 10_000.0, [0.0]
    pace = Pace(seconds, lambda: clock[0])
    pace.start(first * guess)
    speeds = iter(accumulate(changes, lambda x, y: min(max(x * y, 0.02), 50), initial=first))
    config, step, each = pace.plan(tiny_run(), 0), 0, next(speeds)
    while step < config.steps:
        step += 1
        clock[0] += each
        if pace.is_due(step):
            config, each = pace.plan(config, step), next(speeds)
    assert abs(clock[0] - seconds) <= 0.1 * seconds
    places, factors = zip(*config.optimizer.knots, strict=True)
    assert list(places) == sorted(set(places))
    assert (factors[0], factors[-1]) == (0.0, pytest.approx(0, abs=0.01))
    assert max(factors) <= 1


def test_a_run_with_no_time_left_takes_one_step_or_is_refused():
    pace = Pace(9, iter([0.0, 1.0, 99.0]).__next__)  # a program that was stopped meanwhile
    pace.start(1.0)
    assert pace.plan(tiny_run(), 0).steps == 1
    assert "give more" in refusal(Pace(9, count(step=9).__next__).start, 0.1)


def test_rates_are_linear_between_knots():
    rate = piecewise(2.0, [(0, 0.0), (4, 1.0), (8, 0.0)])
    assert [rate(step) for step in (0, 3, 4, 7)] == pytest.approx([0.25, 1.75, 1.75, 0.25])


def test_the_configuration_of_such_a_run_repeats_it(text_file, tmp_path, without_pictures):
    pace = Pace(600.0, count(0.0, 30.0).__next__)  # each piece takes some
    pace.start(20.0)
    result = train(tiny_run(), str(text_file), tmp_path / "one", pace=pace)
    config = TrainConfig.load(tmp_path / "one" / "config.yaml")
    assert config.steps == result.steps > PIECES / 4
    assert "change both" in refusal(replace(config, steps=config.steps + 1).total_steps, 0)
    train(config, str(text_file), tmp_path / "two")
    logs = [read_json_lines(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    assert len({tuple(record["step"] for record in log) for log in logs}) == 1
    for name in ("model.safetensors", LAST):
        same_arrays(tmp_path / "one" / name, tmp_path / "two" / name)
    later = replace(config.optimizer, knots=[*config.optimizer.knots, (config.steps + 5, 0.0)])
    later = replace(config, steps=config.steps + 5, optimizer=later)  # a plan that was not saved
    assert train(later, str(text_file), tmp_path / "one", resume=True).steps == config.steps
    assert TrainConfig.load(tmp_path / "one" / "config.yaml") == config


def test_a_killed_validation_is_made_up_for(text_file, tmp_path, monkeypatch, without_pictures):
    validate = Run._validate

    def killed(run):
        if run.progress.step == run.trainer.steps:
            raise SystemExit
        validate(run)

    pace = Pace(600.0, count(0.0, 30.0).__next__)
    pace.start(20.0)
    monkeypatch.setattr(Run, "_validate", killed)
    with pytest.raises(SystemExit):
        train(tiny_run(), str(text_file), tmp_path / "one", pace=pace)
    monkeypatch.setattr(Run, "_validate", validate)
    config = TrainConfig.load(tmp_path / "one" / "config.yaml")
    one, two = (train(config, str(text_file), tmp_path / n, n == "one") for n in ("one", "two"))
    assert one.best_loss == two.best_loss
    same_arrays(*(tmp_path / name / "model.safetensors" for name in ("one", "two")))


def test_validations_take_a_tenth_of_the_time_at_most(text_file, monkeypatch):
    for seconds, every in ((0.1, 7), (2.0, 20), (9.0, 60)):
        monkeypatch.setattr(minutes, "measured", Mock(return_value=(1.0, 10**6, seconds)))
        config, _ = choose(str(text_file), 1, BYTES, monotonic())
        assert config.eval_every == every


def test_the_model_grows_with_the_speed_and_the_text(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(Pace, "start", start := Mock())

    def width(speed, time, text=str(text_file)):
        size = lambda config: config.model["hidden_size"] ** 2  # noqa: E731
        measured = lambda c, _: (size(c) / speed, 30 * size(c), size(c))  # noqa: E731
        monkeypatch.setattr(minutes, "measured", measured)
        chosen, _ = choose(text, time, BYTES, monotonic())
        start.assert_called_with(size(chosen) / speed, 2 * size(chosen))  # of the chosen model
        dropouts.append(chosen.model.get("dropout", 0))
        return chosen.model["hidden_size"]

    dropouts = []
    slow, fast, long = width(1e4, 1), width(1e6, 1), width(1e4, 100)
    assert slow < fast
    assert slow < long
    (much := tmp_path / "much.txt").write_text(text_file.read_text() * 100)
    assert width(1e6, 1, str(much)) < fast
    assert dropouts[3] < dropouts[1]
    assert predicted_loss(1e6, 1e7, 1e7) < predicted_loss(1e6, 1e7, 1e6), "repeated text is worse"


def test_one_slow_step_decides_nothing_and_a_sample_is_a_part_of_a_validation(monkeypatch):
    clock, trainer, source = [0.0], Mock(model=nn.Module()), Mock()
    trainer.step.side_effect = lambda step: clock.append(clock[-1] + (9 if step in (0, 2) else 1))
    source.evaluate.side_effect = lambda *_: clock.append(clock[-1] + 4)
    source.glimpse.side_effect = lambda _: clock.append(clock[-1] + 3)
    monkeypatch.setattr(minutes, "Trainer", lambda *_: trainer)
    monkeypatch.setattr(minutes.time, "perf_counter", lambda: clock[-1])
    assert minutes.measured(tiny_run(), source) == (1, 0, 7)


def test_options_of_the_model_hold(text_file, monkeypatch):
    monkeypatch.setattr(minutes, "measured", lambda config, source: (1.0, 10**6, 0.0))
    chosen = {"hidden_size": 32, "num_hidden_layers": 1, "dropout": 0.1}
    options = {f"model.{name}": value for name, value in chosen.items()} | {"eval_every": 7}
    config, _ = choose(str(text_file), 0.1, options | BYTES, monotonic())
    monkeypatch.setattr(minutes, "FRESH", 1e-9)  # dropout for all that may have one
    for key, value in {"sequence_chunk": 8, "carry_state": True, "model.model_type": "gla"}.items():
        found, _ = choose(str(text_file), 0.1, BYTES | {key: value}, monotonic())
        assert "dropout" not in found.model
    assert choose(str(text_file), 0.1, BYTES, monotonic())[0].model["dropout"]
    assert config.eval_every == 7
    assert config.model.items() >= chosen.items()


def test_steps_of_several_batches_count(text_file, monkeypatch, capsys):
    monkeypatch.setattr(minutes, "measured", lambda config, source: (1.0, 10**6, 0.0))
    for batches in (1, 4):
        options = {"tokenizer.kind": "bytes", "optimizer.accumulate": batches, "data.batch_size": 8}
        choose(str(text_file), 1, options, monotonic())
    found = re.findall(r"([\d.]+) passes.*?(; .*)?\n", capsys.readouterr().err)
    assert float(found[1][0]) == pytest.approx(4 * float(found[0][0]), abs=0.3)
    assert [advice for _, advice in found] == ["", "; give more text or less time"]


def test_a_small_text_has_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(minutes, "measured", lambda config, source: (1.0, 10**6, 0.0))
    (file := tmp_path / "small.txt").write_text("some text " * 210)
    assert choose(str(file), 1, BYTES, monotonic())[0].data.batch_size == 1
    file.write_text("some text " * 2100)
    assert choose(str(file), 1, BYTES, monotonic())[0].data.batch_size == 8


def test_too_little_is_one_line(text_file, tmp_path, capsys, monkeypatch):
    assert refusal(choose, str(text_file), 0, {}, 0) == "--minutes: expected 0.1 to 100,000, got 0"
    assert "hidden_size" in refusal(choose, str(text_file), 1, {"model.hidden_size": {"a": 1}}, 0)
    for key in minutes.DECIDED:
        assert f"decides {key};" in refusal(choose, str(text_file), 1, {key: 1}, 0)
    (file := tmp_path / "short.txt").write_text("too short " * 30)
    assert "give more text" in refusal(choose, str(file), 1, {}, monotonic())
    words = ["train", "--data", str(text_file), "--minutes", "1", "--config", "demo"]
    for more in ([], ["--resume"]):
        line = fails(capsys, *words, "--out", str(tmp_path / "out"), *more)
        assert "--minutes: chooses alone" in line
    line = fails(capsys, *words[:-2], "--out", str(tmp_path / "none"), "--resume")
    assert "--minutes" not in line  # config.yaml has the plan
    assert "already holds other files" in fails(capsys, *words[:-2], "--out", str(tmp_path))
    monkeypatch.setattr(minutes.time, "monotonic", count(0, 30).__next__)
    assert "takes 0.5 of them; give more" in refusal(choose, str(text_file), 1, BYTES, 0)
