"""Reporters of a run's log, and its page."""

import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.errors import refusal
from helpers.training import tiny_run

from mlx_gateloop.train import train
from mlx_gateloop.train.reporters import reporters


@pytest.fixture
def logged(monkeypatch):
    """Stand-ins of wandb and tensorboardX, and what they were given: (name, value, step)."""
    got = []
    wandb = SimpleNamespace(
        init=lambda **_: None,
        log=lambda info, step: got.extend((name, value, step) for name, value in info.items()),
    )
    monkeypatch.setattr("mlx_lm.tuner.callbacks.wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    writer = SimpleNamespace(add_scalar=lambda *values: got.append(values), flush=lambda: None)
    module = SimpleNamespace(SummaryWriter=lambda folder: Path(folder).mkdir() or writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    return got


def test_a_run_reports_its_log_and_draws_it_meanwhile(text_file, tmp_path, logged, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.loop.training_curves", drawn := Mock())
    monkeypatch.setattr("mlx_gateloop.train.loop.DRAW_SECONDS", 0)
    config = tiny_run(steps=4, eval_every=2, log_every=2)
    names = ["wandb", "tensorboard"]
    result = train(config, str(text_file), tmp_path / "a <b>", report_to=names, with_page=True)
    for got in logged:
        assert isinstance(got[1], int | float)
    losses = [(value, step) for name, value, step in logged if name == "validation_loss"]
    assert [step for _, step in losses] == [2, 2, 4, 4]
    assert min(value for value, _ in losses) == result.best_loss
    assert drawn.call_count == 5
    page = (tmp_path / "a <b>" / "page.html").read_text()
    assert "<h1>a &lt;b&gt;</h1>" in page
    assert page.count("<pre>") == 2, "a sample for each validation"
    assert page.count("<polyline") == 4, "two losses, and the half-lives of two layers"


def test_a_page_is_drawn_as_often_as_it_refreshes_and_at_the_end(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.loop.draw_page", drawn := Mock())
    config, seconds = tiny_run(steps=4, log_every=1), count(0.0, 1.0)
    monkeypatch.setattr("mlx_gateloop.train.loop.time.monotonic", seconds.__next__)
    for refresh, times in ((1000, 1), (0, 6)):
        monkeypatch.setattr("mlx_gateloop.train.loop.REFRESH", refresh)
        train(config, str(text_file), tmp_path / str(refresh), with_page=True)
        assert drawn.call_count == times
        drawn.reset_mock()


def test_a_sample_does_not_control_the_terminal(text_file, tmp_path, monkeypatch, capsys):
    seen = {"sample": "a\x1b]0;title\x07"}
    monkeypatch.setattr("mlx_gateloop.train.text.TextSource.glimpse", lambda *_: seen)
    train(tiny_run(steps=1), str(text_file), tmp_path / "out")
    assert r"a\x1b]0;title\x07" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("mail", "unknown; give wandb or"), ("wandb", "not installed; pip")]
)
def test_what_cannot_report_is_one_line(tmp_path, monkeypatch, name, message):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert message in refusal(reporters, [name], tmp_path, {})


def test_a_report_that_fails_ends_no_run(text_file, tmp_path, logged, monkeypatch, capsys):
    full, gone = Mock(side_effect=OSError("full")), Mock(side_effect=[None, ValueError("gone")])
    monkeypatch.setattr("mlx_gateloop.train.reporters.write_text", full)
    monkeypatch.setattr(sys.modules["wandb"], "log", gone)
    config, options = tiny_run(steps=4, log_every=1), {"report_to": ["wandb"], "with_page": True}
    assert train(config, str(text_file), tmp_path / "out", **options).steps == 4
    said = capsys.readouterr().err
    assert "page.html: not drawn: full" in said
    assert "--report-to wandb: gone; the run goes on without this report" in said


def test_a_reporter_that_fails_at_its_beginning_is_one_line(tmp_path, logged):
    (report,) = reporters(["tensorboard"], tmp_path / "none", {})
    assert "--report-to tensorboard: " in refusal(report, {"step": 1})
