"""`gateloop eval`: protocols, and what it counts."""

from math import log

import pytest
from helpers.commands import TEXT, fails
from helpers.models import save_tiny_model, tiny_model
from helpers.tokenizers import KINDS

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.tokenizer import train_tokenizer


def printed_by(capsys, *words):
    assert main(["eval", *words]) == 0
    lines = (line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    return {name: value.strip() for name, value in lines}


def test_eval_scores_the_whole_text_or_the_part_that_training_cut_off(model, capsys):
    (model / "config.yaml").write_text("data: {validation_fraction: 0.25}")
    words = ["--model", "model", "--data", "text.txt"]
    whole = printed_by(capsys, *words)["tokens"]
    assert whole == f"{len(TEXT):,}"  # every byte and the end of text, but the first
    part = printed_by(capsys, *words, "--split", "validation")["tokens"]
    assert part == f"{len(TEXT) - int(len(TEXT) * 0.75):,}"


@pytest.mark.parametrize(
    ("options", "count", "protocol"),
    [
        ("--context 16", len(TEXT), "windows of 16 tokens side by side, each from an empty state"),
        ("--context 16 --stride 8", len(TEXT), "sliding: windows of 16 tokens"),
        ("--context 16 --carry", len(TEXT), "carried"),
        ("--context 16 --whole-windows", (len(TEXT) - 1) // 16 * 16, "windows of 16 tokens side"),
        (f"--context {10**21} --batch-size {10**30}", len(TEXT), f"windows of {len(TEXT):,} "),
    ],
)  # fmt: skip
def test_eval_names_its_protocol(model, capsys, options, count, protocol):
    printed = printed_by(capsys, "--model", "model", "--data", "text.txt", *options.split())
    assert printed["tokens"] == f"{count:,}"
    assert printed["protocol"].startswith(protocol)


def test_eval_counts_the_bytes_of_whole_windows(work, capsys):
    words, signs = "a few longer words in a row, " * 20, "\N{SNOWMAN}" * 50
    (work / "mixed.txt").write_text(words + signs, encoding="utf-8")
    tokenizer = train_tokenizer([words], 300)
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, work / "mixed")
    tokens = tokenizer.encode(words + signs)
    options = ["--model", "mixed", "--data", "mixed.txt", "--context", "100", "--whole-windows"]
    printed = printed_by(capsys, *options)
    count = (len(tokens) - 1) // 100 * 100
    assert printed["tokens"] == str(count)
    signs_left_out = (len(tokens) - count - 1) // 3  # a token for each byte, and the first is whole
    size = len((words + signs).encode()) - 3 * signs_left_out
    nats = float(printed["loss"].split()[0]) * count
    assert float(printed["bits per byte"]) == pytest.approx(nats / log(2) / size, rel=1e-4)


def test_eval_carries_no_softmax(work, capsys):
    save_tiny_model(work / "softmax", mixer="softmax")
    line = fails(capsys, "eval", "--model", "softmax", "--data", "text.txt", "--carry")
    assert line == "error: --carry: a softmax model has no fixed-size state; use --stride"


def test_eval_scores_a_model_without_special_tokens(work, capsys):
    tokenizer = KINDS["byte-level"]()
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, work / "plain")
    tokens = printed_by(capsys, "--model", "plain", "--data", "text.txt")["tokens"]
    assert tokens == f"{len(tokenizer.encode(TEXT)) - 1:,}"
