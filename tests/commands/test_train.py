"""`gateloop train` as a user runs it."""

import pytest
from helpers.commands import fails
from helpers.tokenizers import sparse_tokenizer

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.commands.train import CONFIGS, configurations
from mlx_gateloop.data import pack
from mlx_gateloop.train import TrainConfig

TRAIN = ["train", "--config", "tiny.yaml", "--data", "text.txt", "--out", "run"]
OWN_TOKENIZER = ["--set", "tokenizer={kind: pretrained, path: tokenizer}"]


def test_train_eval_generate(work, capsys):
    assert main(TRAIN) == 0
    assert "saved run after 6 steps" in capsys.readouterr().out
    assert main(["eval", "--model", "run", "--data", "text.txt", "--context", "16"]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert 0 < float(printed["loss"].split()[0]) < 7
    command = ["generate", "--model", "run", "--prompt", "1 plus", "--max-tokens", "8"]
    texts = []
    for _ in range(2):
        assert main([*command, "--seed", "1"]) == 0
        shown = capsys.readouterr()
        texts.append(shown.out)
        assert "tokens/s" in shown.err
    assert texts[0] == texts[1] != "\n"
    assert "already holds another run" in fails(capsys, *TRAIN)
    assert main([*TRAIN, "--resume"]) == 0
    # the run knows its own configuration
    assert main(["train", "--data", "text.txt", "--out", "run", "--resume"]) == 0
    capsys.readouterr()
    assert "none: no checkpoint to resume" in fails(capsys, "train", "--out", "none", "--resume")
    (work / "run" / "config.yaml").unlink()
    assert "give that of the run by --config" in fails(capsys, "train", "--out", "run", "--resume")


def test_a_configuration_is_taken_by_its_name_and_flags_override_it(work, monkeypatch):
    assert "tinyshakespeare" in configurations()
    taken = []
    monkeypatch.setattr("mlx_gateloop.train.estimate", lambda config, *_: taken.append(config))
    (work / "demo").mkdir()
    for name in ("tinyshakespeare", "demo", "tiny.yaml"):
        assert main(["train", "--config", name, "--dry-run"]) == 0
    files = [CONFIGS / "tinyshakespeare.yaml", CONFIGS / "demo.yaml", "tiny.yaml"]
    assert taken == [TrainConfig.load(file) for file in files]
    flags = ["--steps=2", "--learning-rate=0.003", "--set=model.dropout=0.25", "--set=weights=null"]
    assert main([*TRAIN, *flags, "--dry-run"]) == 0
    written = {"steps": 2, "optimizer.learning_rate": 0.003, "model.dropout": 0.25}
    assert taken[-1] == TrainConfig.load("tiny.yaml", written)


def test_a_dry_run_says_what_training_would_cost_and_writes_nothing(work, capsys):
    before = sorted(work.rglob("*"))
    argv = ["train", "--config", "tiny.yaml", "--data", "text.txt", "--dry-run"]
    assert main([*argv, "--out", "run"]) == main(argv) == 0
    shown = capsys.readouterr().out
    assert "steps        6 of 32 tokens" in shown
    assert "Nothing was written." in shown
    assert sorted(work.rglob("*")) == before
    assert "leave out --resume" in fails(capsys, *argv, "--resume")
    assert "--out: give a directory" in fails(capsys, *argv[:-1])


@pytest.mark.parametrize("largest", [4, 70000])
def test_a_tokenizer_that_leaves_out_ids_has_a_row_for_the_largest(largest, work, capsys):
    (work / "words.txt").write_text("a b c " * 300)
    sparse_tokenizer(largest).save_pretrained(work / "tokenizer")
    assert main([*TRAIN, "--data", "words.txt", "--steps", "1", *OWN_TOKENIZER]) == 0
    model, loaded = gl.load("run")
    assert model.args.vocab_size == largest + 1
    assert pack(["a b c"], loaded).tokens.tolist() == [1, 2, largest, 3]
    assert main(["eval", "--model", "run", "--data", "words.txt"]) == 0
    assert "skipped" not in capsys.readouterr().out


def test_a_tokenizer_with_a_huge_id_is_refused(work, capsys):
    sparse_tokenizer(70000).save_pretrained(work / "tokenizer")
    file = work / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace("70000", "1000000000"))
    line = fails(capsys, *TRAIN, *OWN_TOKENIZER)
    assert "ids to 1,000,000,000, for a row each; use one with fewer" in line
    assert not (work / "run").exists()


@pytest.mark.parametrize(("flag", "value", "message"), [
    ("--data", "short.txt", "token"), ("--data", "d" * 300, "File name too long"),
    ("--data", "", "name of the data is empty"),
    ("--config", "missing.yaml", "--config missing.yaml: no such file"),
    ("--config", "nothing", "give a YAML file or one of 125m, bytes, code, "),
    ("--set", "nonsense", "expected KEY=VALUE"), ("--set", "steps=[1", "not a YAML value"),
    ("--set", "model.num_hidden_layers=1001", "expected at most 1000"),
    ("--weights", "no\udcff", "not UTF-8"),
    ("--set", "optimizer.warmup_steps=6", "warmup_steps (6) must be below"),
    ("--out", "text.txt", "text.txt"),
])  # fmt: skip
def test_bad_input_to_train(work, capsys, flag, value, message):
    (work / "short.txt").write_text("hi")
    before = sorted(work.rglob("*"))
    assert message in fails(capsys, *TRAIN, flag, value)
    assert sorted(work.rglob("*")) == before
