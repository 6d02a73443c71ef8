"""`gateloop eval`: protocols, and what it counts."""

from math import log

import pytest
from helpers.commands import TEXT, fails
from helpers.models import save_tiny_model, tiny_model
from helpers.tokenizers import KINDS

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.tokenizer import train_tokenizer


def test_eval_scores_the_whole_text_or_the_part_that_training_cut_off(model, work, capsys):
    def tokens(*options: str) -> int:
        assert main(["eval", "--model", "model", "--data", "text.txt", *options]) == 0
        return int(capsys.readouterr().out.split()[1].replace(",", ""))

    (model / "config.yaml").write_text("data: {validation_fraction: 0.25}")
    assert tokens() == len(TEXT)  # every byte and the end of text, but the first
    assert tokens("--split", "validation") == len(TEXT) - int(len(TEXT) * 0.75)


def test_eval_names_its_protocol(model, capsys):
    def scores(*options: str) -> tuple[float, str]:
        argv = ["eval", "--model", "model", "--data", "text.txt", "--context", "16", *options]
        assert main(argv) == 0
        printed = dict(
            line.split("  ", maxsplit=1) for line in capsys.readouterr().out.splitlines()
        )
        return int(printed["tokens"].strip().replace(",", "")), printed["protocol"].strip()

    whole = (len(TEXT) - 1) // 16 * 16
    assert scores() == (
        len(TEXT),
        "windows of 16 tokens side by side, each from an empty state",
    )
    assert scores("--stride", "8")[1].startswith("sliding: windows of 16 tokens")
    assert scores("--carry")[1].startswith("carried")
    long = f"windows of {len(TEXT):,} tokens side by side"
    assert scores("--context", "1000000")[1].startswith(long)
    assert scores("--whole-windows")[0] == whole < len(TEXT)


def test_eval_counts_the_bytes_of_whole_windows(work, capsys):
    words, signs = "a few longer words in a row, " * 20, "\N{SNOWMAN}" * 50
    (work / "mixed.txt").write_text(words + signs, encoding="utf-8")
    tokenizer = train_tokenizer([words], 300)
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, work / "mixed")
    tokens = tokenizer.encode(words + signs)
    argv = ["eval", "--model", "mixed", "--data", "mixed.txt", "--context", "100"]
    assert main([*argv, "--whole-windows"]) == 0
    printed = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    count = (len(tokens) - 1) // 100 * 100
    assert printed["tokens"].strip() == str(count)
    signs_left_out = (len(tokens) - count - 1) // 3  # a token for each byte, and the first is whole
    size = len((words + signs).encode()) - 3 * signs_left_out
    nats = float(printed["loss"].split()[0]) * count
    assert float(printed["bits per byte"]) == pytest.approx(nats / log(2) / size, rel=1e-4)


def test_eval_takes_a_batch_larger_than_the_text(model, capsys):
    argv = ["eval", "--model", "model", "--data", "text.txt", "--context", "9999999999999999999999"]
    assert main([*argv, "--batch-size", "1" + "0" * 30]) == 0
    assert f"{len(TEXT):,}" in capsys.readouterr().out


def test_eval_carries_no_softmax(work, capsys):
    save_tiny_model(work / "softmax", mixer="softmax")
    line = fails(capsys, "eval", "--model", "softmax", "--data", "text.txt", "--carry")
    assert line == "error: --carry: a softmax model has no fixed-size state; use --stride"


def test_eval_scores_a_model_without_special_tokens(work, capsys):
    tokenizer = KINDS["byte-level"]()
    gl.save(tiny_model(vocab_size=len(tokenizer)), tokenizer, work / "plain")
    assert main(["eval", "--model", "plain", "--data", "text.txt"]) == 0
    tokens = len(tokenizer.encode(TEXT))
    assert int(capsys.readouterr().out.split()[1].replace(",", "")) == tokens - 1
