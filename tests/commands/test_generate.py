"""`gateloop generate`: prompts, answers and their ends."""

import io
import json
import sys

import pytest
from helpers.commands import fails

import mlx_gateloop as gl
from mlx_gateloop.cli import main


@pytest.mark.parametrize(("data", "prompt_tokens"), [("chat.jsonl", 21), ("text.txt", 2)])
def test_generate_answers_where_the_text_had_conversations(work, capsys, data, prompt_tokens):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    (work / "chat.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 50)
    assert main(["train", "--config", "tiny.yaml", "--data", data, "--out", "run"]) == 0
    assert (work / "run" / "chat_template.jinja").exists() == (data == "chat.jsonl")
    argv = ["generate", "--model", "run", "--prompt", "Hi", "--max-tokens", "1"]
    for extra, expected in (([], prompt_tokens), (["--raw"], 2)):
        assert main([*argv, *extra]) == 0
        assert f"prompt: {expected} tokens" in capsys.readouterr().err
    if data == "chat.jsonl":
        assert main([*argv, "--system", "Be brief."]) == 0
        assert f"prompt: {prompt_tokens + 19} tokens" in capsys.readouterr().err
        assert "--system: leave out --raw" in fails(capsys, *argv, "--raw", "--system", "x")


def test_an_answer_that_ends_at_once_says_so(model, capsys):
    loaded, tokenizer = gl.load(model)
    loaded.lm_head.bias = loaded.lm_head.bias.at[tokenizer.eos_token_id].add(1e9)
    gl.save(loaded, tokenizer, model)
    assert main(["generate", "--model", str(model), "--prompt", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "\n"
    assert shown.err.endswith("generated: no text, because the model ended at once\n")


ODD = ["--top-k " + "9" * 30, "--temperature 1e-320", "--temperature 1e300", "--top-p 1e-300"]
ODD += ["--min-p 1e-320", "--repetition-penalty 1e-320", "--repetition-penalty 1e300"]
ODD += [f"--seed {2**64 - 1}", "--prompt a\0b", "--prompt ", "--prompt \0 --stop \0"]


@pytest.mark.parametrize("options", ODD)
def test_odd_but_possible_requests_are_answered(model, capsys, options):
    words = ["generate", "--model", "model", "--prompt", "a", "--max-tokens", "3"]
    assert main([*words, *options.split(" ")]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_long_prompt_from_a_pipe_is_read(model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello world. " * 4_000)))
    assert main(["generate", "--model", "model", "--prompt", "-", "--max-tokens", "1"]) == 0
    assert capsys.readouterr().err.startswith("prompt: 52000 tokens")
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where the shell says <&-
    assert "standard input is closed" in fails(capsys, "generate", "--model", "m", "--prompt", "-")
