"""`gateloop tune` and `gateloop state`."""

import json
from unittest.mock import Mock

import pytest
from helpers.commands import fails

from mlx_gateloop.cli import main

pytestmark = pytest.mark.usefixtures("model")


def tunes(*more, data="text.txt", out="calm.state"):
    options = ["--length", "16", "--steps", "6", *more]
    return ["tune", "--model", "model", "--data", data, "--out", out, *options]


def test_a_state_is_tuned_shown_mixed_and_speaks(capsys):
    assert main(tunes("--state-only")) == 0
    assert "saved calm.state: validation loss" in capsys.readouterr().out
    assert main(["state", "mix", "calm.state", "calm.state", "--out", "both.state"]) == 0
    assert main(["state", "show", "both.state"]) == 0
    assert "root mean square" in capsys.readouterr().out
    texts = []
    for state in ("calm", "both"):
        say = ["--prompt", "so", "--max-tokens", "8", "--temperature", "0"]
        assert main(["generate", "--model", "model", "--state", f"{state}.state", *say]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1], "the mean of a state and itself"


def test_a_run_needs_no_reader_of_what_it_says(monkeypatch, work):
    monkeypatch.setattr("sys.stderr", Mock(write=Mock(side_effect=BrokenPipeError)))
    assert main(tunes("--state-only")) == 0
    assert (work / "calm.state").exists()


def test_a_model_of_texts_learns_conversations(capsys, work):
    pair = {"prompt": "What is this?", "completion": "An answer that is a bit longer."}
    (work / "chat.jsonl").write_text(f"{json.dumps(pair)}\n" * 40)
    assert main(tunes("--answers", data="chat.jsonl", out="chats")) == 0
    assert main(["eval", "--model", "chats", "--data", "text.txt"]) == 0  # which has no answers
    capsys.readouterr()
    assert main(["generate", "--model", "chats", "--system", "Be brief.", "--prompt", "Hi"]) == 0


def test_adapters_are_learned(capsys):
    tune = tunes("--lora", "2", "--batch-size", "2", out="adapters")
    assert main(tune) == 0
    assert "saved adapters after 6 steps" in capsys.readouterr().out
    assert main([*tune, "--resume"]) == 0


@pytest.mark.parametrize(("options", "data", "message"), [
    (["--state-only"], "short.txt", "fewer than two tokens"),
    (["--state-only", "--answers"], "text.txt", "a text has none"),
    (["--state-only", "--resume"], "text.txt", "leave them out"),
    ([], "chat.json", "JSON; name it .jsonl"),
    (["--lora", "2"], "chat.jsonl", "no chat template; give plain text"),
    (["--set", "model.dropout=0.5"], "text.txt", "model.dropout: --model decides it"),
    (["--set", "model={dropout: 0.5}"], "text.txt", "--set model: --model decides it"),
    (["--set", "weights=model"], "text.txt", "weights: --model decides it"),
])  # fmt: skip
def test_bad_input_is_one_line(capsys, work, options, data, message):
    for name in ("chat.json", "chat.jsonl"):
        (work / name).write_text('{"prompt": "Hi", "completion": "Ho"}\n' * 40)
    (work / "short.txt").write_text("a")
    assert message in fails(capsys, *tunes(*options, data=data))
