"""`gateloop eval`: protocols, and what it counts."""

import pytest
from helpers.commands import TEXT, fails
from helpers.models import ruined, save_tiny_model, tiny_model
from helpers.tokenizers import KINDS

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.tokenizer import byte_tokenizer


def printed_by(capsys, *words):
    assert main(["eval", *words]) == 0
    lines = (line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    return {name: value.strip() for name, value in lines}


def test_eval_scores_the_whole_text_or_the_part_that_training_cut_off(model, capsys):
    tuned = "data: {validation_fraction: 0.25}\nweights: a model that is gone\nlora_rank: 2"
    (model / "config.yaml").write_text(tuned)
    words = ["--model", "model", "--data", "text.txt"]
    whole = printed_by(capsys, *words)["tokens"]
    assert whole == f"{len(TEXT):,}"  # every byte and the end of text, but the first
    part = printed_by(capsys, *words, "--split", "validation")["tokens"]
    assert part == f"{len(TEXT) - int(len(TEXT) * 0.75):,}"
    (model / "config.yaml").unlink()  # as of a converted model
    assert main(["eval", *words, "--split", "validation"]) == 0
    assert "model: no config.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "protocol"), [
    ("--context 16", "windows of 16 tokens side by side, each from an empty state"),
    ("--context 16 --stride 8", "sliding: windows of 16 tokens"),
    ("--context 16 --carry", "carried"),
    (f"--context {10**21} --batch-size {10**30}", f"windows of {len(TEXT):,} "),
])  # fmt: skip
def test_eval_names_its_protocol(model, capsys, options, protocol):
    printed = printed_by(capsys, "--model", "model", "--data", "text.txt", *options.split())
    assert printed["tokens"] == f"{len(TEXT):,}"
    assert printed["protocol"].startswith(protocol)


def test_eval_carries_no_softmax_and_refuses_weights_that_are_no_numbers(work, capsys):
    save_tiny_model(work / "softmax", mixer="softmax")
    line = fails(capsys, "eval", "--model", "softmax", "--data", "text.txt", "--carry")
    assert line == "error: --carry: a softmax model has no fixed-size state; use --stride"
    gl.save(ruined(tiny_model(vocab_size=262)), byte_tokenizer(), work / "ruined")
    line = fails(capsys, "eval", "--model", "ruined", "--data", "text.txt")
    assert line.startswith("error: ruined: its loss is not finite")


def test_eval_scores_a_model_without_special_tokens(work, capsys):
    tokenizer = KINDS["byte-level"]()
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, work / "plain")
    tokens = printed_by(capsys, "--model", "plain", "--data", "text.txt")["tokens"]
    assert tokens == f"{len(tokenizer.encode(TEXT)) - 1:,}"
