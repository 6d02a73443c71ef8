"""`gateloop watch`, also of models that others made."""

import signal

import numpy as np
import pytest
from helpers.commands import fails
from helpers.models import save_tiny_model
from helpers.recurrent import save_recurrent_model
from helpers.tokenizers import add_token

from mlx_gateloop.cli import main
from mlx_gateloop.generate import stream


@pytest.fixture
def model(work):
    """A random falcon_h1 with a tokenizer and a chat template."""
    return save_recurrent_model(work / "model", "falcon_h1")


def test_watch_streams_and_leaves_trace_picture_and_page(model, capsys):
    options = ["--temperature", "0", "--max-tokens", "8"]
    assert main(["watch", "--model", "model", "--prompt", "1 plus", *options]) == 0
    shown = capsys.readouterr()
    files = ["trace.npz", "transitions.png", "view.html"]
    assert shown.out.splitlines()[-3:] == [f"watched/{name}" for name in files]
    (line,) = [line for line in shown.err.splitlines() if "not watched" in line]
    assert line.startswith("model.layers.0.self_attn and 1 more: not watched: attention")
    assert (model.parent / "watched" / "transitions.png").read_bytes()[:4] == b"\x89PNG"
    assert str(model) not in (model.parent / "watched" / "view.html").read_text()
    with np.load("watched/trace.npz") as trace:
        layers, tokens, channels = trace["magnitude"].shape
        assert (layers, channels) == (2, 4)
        assert trace["names"].tolist() == [f"model.layers.{n}.mamba" for n in range(2)]
        assert tokens == len(trace["texts"])
        assert "1 plus" in "".join(trace["texts"])
        assert ((trace["magnitude"] > 0) & (trace["magnitude"] < 1)).all()


def test_ctrl_c_keeps_what_was_recorded(model, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        for number, piece in enumerate(stream(*arguments, **options)):
            if number == 3:
                signal.raise_signal(signal.SIGINT)
            yield piece

    monkeypatch.setattr("mlx_gateloop.generate.stream", interrupted)
    assert main(["watch", "--model", "model", "--prompt", "1 plus", "--out", "x"]) == 130
    assert capsys.readouterr().out.endswith("\nx/trace.npz\nx/transitions.png\nx/view.html\n")
    with np.load("x/trace.npz") as trace:
        assert "1 plus" in "".join(trace["texts"][-60:]), "the answer went on"


def test_a_model_that_mlx_lm_does_not_know_or_with_too_many_ids(model, capsys):
    add_token("<more>", model)
    line = fails(capsys, "watch", "--prompt", "1<more>", "--model", "model", "--out", "x")
    assert "its tokenizer makes token 262, its embedding has 262 rows" in line
    assert not (model.parent / "x").exists()
    assert "not a directory" in fails(capsys, "watch", "--model", "model", "--out", __file__)
    (model / "config.json").write_text('{"model_type": "nothing"}')
    line = fails(capsys, "watch", "--model", "model", "--out", "x")
    assert line.startswith("error: model: cannot be loaded")


def test_a_model_that_is_not_recurrent_streams(work, capsys):
    save_tiny_model(work / "model", mixer="softmax", transition="none", num_heads=2)
    assert main(["watch", "--model", "model", "--max-tokens", "3", "--out", "x"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "prompt:" not in line]
    assert line.startswith("nothing recorded, no files written: not watched: attention without")
    assert not (work / "x").exists()
