"""`gateloop generate`: prompts, answers and their ends."""

import io
import sys

import mlx.core as mx
import pytest
from helpers.commands import fails
from helpers.models import save_tiny_model

import mlx_gateloop as gl
from mlx_gateloop.cli import main


@pytest.mark.parametrize(("chat", "options", "prompt_tokens"), [
    (False, [], 2), (True, [], 21), (True, ["--raw"], 2), (True, ["--system", "Be brief."], 40),
])  # fmt: skip
def test_a_model_with_a_template_answers(work, capsys, chat, options, prompt_tokens):
    save_tiny_model(work / "model", chat=chat)
    argv = ["generate", "--model", "model", "--prompt", "Hi", "--max-tokens", "1", *options]
    assert main(argv) == 0
    assert f"prompt: {prompt_tokens} tokens" in capsys.readouterr().err
    if options == ["--raw"]:
        assert "--system: leave out --raw" in fails(capsys, *argv, "--system", "x")


def test_a_state_goes_on_without_a_question(work, capsys):
    save_tiny_model(work / "model", chat=True)
    use = ["--model", "model"]
    assert main(["read", "text.txt", *use, "--out", "a.state"]) == 0
    capsys.readouterr()
    for options, tokens in (([], 0), (["--prompt", "Hi"], 21)):
        assert main(["generate", *use, "--state", "a.state", "--max-tokens", "1", *options]) == 0
        assert f"prompt: {tokens} tokens" in capsys.readouterr().err


def test_an_answer_that_ends_at_once_says_so(model, capsys):
    loaded, tokenizer = gl.load(model)
    loaded.lm_head.bias = loaded.lm_head.bias.at[tokenizer.eos_token_id].add(1e9)
    gl.save(loaded, tokenizer, model)
    assert main(["generate", "--model", str(model), "--prompt", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "\n"
    assert shown.err.endswith("generated: no text, because the model ended at once\n")
    loaded.lm_head.bias = loaded.lm_head.bias * mx.nan
    gl.save(loaded, tokenizer, model)
    assert "model: its logits are not numbers" in fails(capsys, "generate", "--model", str(model))


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
