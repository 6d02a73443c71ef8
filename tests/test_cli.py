"""The commands as a user runs them: what is printed, what is written, which exit code comes."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from math import log
from pathlib import Path

import pytest
import yaml
from helpers.models import save_tiny_model, tiny_model

import mlx_gateloop as gl
from mlx_gateloop.cli import main
from mlx_gateloop.commands import COMMANDS
from mlx_gateloop.tokenizer import byte_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[1]
TEXT = "".join(f"{n} plus {n} is {n + n}.\n" for n in range(300))
TINY = {
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16},
    "tokenizer": {"kind": "bytes"},
    "data": {"length": 16, "batch_size": 2},
    "steps": 6,
    "eval_every": 3,
    "checkpoint_every": 3,
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return tmp_path


@pytest.fixture
def model(work):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return save_tiny_model(work / "model", **sizes)


def fails(capsys, *argv: str) -> str:
    """Exit code 2, one line on stderr, no traceback; returns the line."""
    assert main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_train_eval_generate(work, capsys):
    train = ["train", "--config", "tiny.yaml", "--data", "text.txt", "--out", "run"]
    assert main(train) == 0
    assert "saved run after 6 steps" in capsys.readouterr().out
    for name in ("config.json", "model.safetensors", "tokenizer.json", "log.jsonl", "curves.png"):
        assert (work / "run" / name).stat().st_size > 0

    assert main(["eval", "--model", "run", "--data", "text.txt", "--context", "16"]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert int(printed["tokens"].replace(",", "")) >= len(TEXT) - 2
    assert 0 < float(printed["loss"].split()[0]) < 7

    command = ["generate", "--model", "run", "--prompt", "1 plus", "--max-tokens", "8"]
    texts = []
    for _ in range(2):
        assert main([*command, "--seed", "1"]) == 0
        shown = capsys.readouterr()
        texts.append(shown.out)
        assert "tokens/s" in shown.err
    assert texts[0] == texts[1] != "\n"

    assert "already holds another run" in fails(capsys, *train)
    assert main([*train, "--resume"]) == 0
    # the run knows its own configuration
    assert main(["train", "--data", "text.txt", "--out", "run", "--resume"]) == 0


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
    assert shown.err.endswith("generated: no text, the model ended it at once\n")


def test_flags_override_the_config(work):
    argv = ["train", "--config", "tiny.yaml", "--data", "text.txt", "--out", "run"]
    argv += ["--steps", "2", "--learning-rate", "0.003", "--set", "model.dropout=0.25"]
    assert main(argv) == 0
    written = yaml.safe_load((work / "run" / "config.yaml").read_text())
    assert written["steps"] == 2
    assert written["optimizer"]["learning_rate"] == 0.003
    assert written["model"]["dropout"] == 0.25


def test_a_dry_run_says_what_training_would_cost_and_writes_nothing(work, capsys):
    before = sorted(work.rglob("*"))
    argv = ["train", "--config", "tiny.yaml", "--data", "text.txt", "--dry-run"]
    assert main([*argv, "--out", "run"]) == main(argv) == 0
    shown = capsys.readouterr().out
    assert "steps        6 of 32 tokens" in shown
    assert "tokens       192 (" in shown
    assert "Nothing was written." in shown
    assert sorted(work.rglob("*")) == before
    assert "leave out --resume" in fails(capsys, *argv, "--resume")
    assert "--out: give a directory" in fails(capsys, *argv[:-1])


def test_wikitext_from_a_folder_with_a_tokenizer_of_ones_own(work, capsys):
    folder = work / "wiki"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        (folder / f"wiki.{part}.raw").write_text(" \n = Sums = \n \n" + TEXT)
    byte_tokenizer().save_pretrained(work / "tokenizer")
    argv = ["train", "--config", "tiny.yaml", "--data", "wiki", "--out", "run"]
    argv += ["--set", "tokenizer={kind: pretrained, path: tokenizer}"]
    assert main(argv) == 0
    capsys.readouterr()
    argv = ["eval", "--model", "run", "--data", "wiki", "--split", "test", "--context", "64"]
    assert main([*argv, "--whole-windows"]) == 0
    printed = capsys.readouterr().out.split()
    tokens = len(" = Sums = \n" + TEXT)
    assert int(printed[1].replace(",", "")) == (tokens - 1) // 64 * 64


def test_figures_of_a_text_model(model, work, capsys):
    argv = ["figures", "--model", "model", "--text", "text.txt", "--out", "pictures"]
    assert main([*argv, "--length", "9"]) == 0
    names = ["transitions", "amplitude-activations", "parallel-scan"]
    paths = [f"pictures/{name}.png" for name in names]
    assert capsys.readouterr().out.splitlines() == paths
    assert all((work / path).read_bytes()[:4] == b"\x89PNG" for path in paths)
    (model / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    assert main(argv) == 0
    assert "pictures/training-curves.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--data": "missing.txt"}, "missing.txt"),
        ({"--data": "empty.txt"}, "empty.txt"),
        ({"--data": "short.txt"}, "token"),
        ({"--data": "latin.txt"}, "latin.txt"),
        ({"--config": "missing.yaml"}, "missing.yaml: No such file"),
        ({"--config": "typo.yaml"}, "unknown key optimizer.learning_rat"),
        ({"--config": "impossible.yaml"}, "data.length"),
        ({"--set": "nonsense"}, "expected KEY=VALUE"),
        ({"--set": "steps=[1"}, "not a YAML value"),
        ({"--set": "seed=2020-99-99"}, "not a YAML value"),
        ({"--set": "model.gate=imaginary"}, "model.gate must be"),
        ({"--set": "model.preset=[1]"}, "unknown model.preset"),
        ({"--set": "steps=true"}, "steps"),
        ({"--set": "optimizer.learning_rate=.inf"}, "optimizer.learning_rate"),
        ({"--set": "optimizer.warmup_steps=6"}, "warmup_steps (6) must be below"),
        ({"--out": "text.txt"}, "text.txt"),
        ({"--out": "o" * 300}, "File name too long"),
        ({"--data": "d" * 300}, "File name too long"),
        ({"--data": ""}, "empty name"),
    ],
)
def test_bad_input_to_train(work, capsys, changes, message):
    (work / "short.txt").write_text("hi")
    (work / "latin.txt").write_bytes("déjà vu ".encode("latin-1") * 50)
    (work / "typo.yaml").write_text(yaml.safe_dump({**TINY, "optimizer": {"learning_rat": 1}}))
    (work / "impossible.yaml").write_text(yaml.safe_dump({**TINY, "data": {"length": -1}}))
    before = sorted(work.rglob("*"))
    arguments = {"--config": "tiny.yaml", "--data": "text.txt", "--out": "run", **changes}
    line = fails(capsys, "train", *(word for pair in arguments.items() for word in pair))
    assert message in line
    assert sorted(work.rglob("*")) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["eval", "--model", "missing", "--data", "text.txt"], "missing"),
        (["eval", "--model", "model", "--data", "missing.txt"], "missing.txt"),
        (["eval", "--model", "model", "--data", "text.txt", "--context", "0"], "--context"),
        (
            ["eval", "--model", "model", "--data", "text.txt", "--context", "8", "--stride", "9"],
            "--stride: expected 1 to the context's 8 tokens, got 9",
        ),
        (["generate", "--model", "model", "--top-p", "7"], "top_p"),
        (["generate", "--model", "model", "--system", "be kind"], "--system"),
        (["generate", "--model", "model", "--max-tokens", "0"], "max_tokens"),
        (["generate", "--model", "text.txt"], "text.txt"),
        (["generate", "--model", "m" * 300], "m" * 300),
        (["generate", "--model", "model", "--prompt", "\udcff"], "--prompt: not UTF-8"),
        (
            ["generate", "--model", "model", "--prompt", "a\ud800"],
            "--prompt: not UTF-8 text (at byte 1",
        ),
        (["generate", "--model", "model", "--stop", "\udcff"], "--stop: not UTF-8 text (at byte 0"),
        (["generate", "--model", "model", "--system", "\ud800"], "--system: not UTF-8 text"),
        (["generate", "--model", "model", "--stop", ""], "a stop string must not be empty"),
        (
            ["generate", "--model", "model", "--max-tokens", "9" * 30],
            "max_tokens: expected 1 to 1,0",
        ),
        (["generate", "--model", "model", "--seed", "9" * 30], "seed: expected a number in"),
        (
            ["generate", "--model", "model", "--temperature", "inf"],
            "temperature: expected a number",
        ),
        (["generate", "--model", "pipe"], "pipe"),
        (["generate", "--model", "a\0b"], "no such model directory"),
        (["eval", "--model", "model", "--data", "pipe"], "pipe: not a regular file"),
        (["eval", "--model", "model", "--data", "/dev/zero"], "/dev/zero: not a regular file"),
        (["eval", "--model", "model", "--data", "pipes"], "no .txt, .md, .text, .jsonl file"),
        (["eval", "--model", "model", "--data", "binary"], "binary: not UTF-8 text (byte 0x80"),
        (["eval", "--model", "model", "--data", "deep.jsonl"], "deep.jsonl:1: expected"),
        (["eval", "--model", "model", "--data", "model"], "model: no .txt"),
        (["eval", "--model", "model", "--data", "a\0b"], "no such file or folder"),
        (
            ["figures", "--model", "model", "--text", "pipe", "--out", "x"],
            "pipe: not a regular file",
        ),
        (["eval", "--model", "model", "--data", "text.txt", "--split", "test"], "no test part"),
        (["bench", "--quick", "--out", "text.txt"], "text.txt"),
        (["mlx-lm", "generate", "--model", "./missing"], "no such model directory"),
        (["mlx-lm", "frobnicate"], "mlx-lm frobnicate: no such command"),
        (["train", "--steps", "2", "--epochs", "1", "--out", "x"], "give one of them"),
        (["memory-horizon", "--preset", "large", "--out", "x"], "choose small, bar, paper"),
        (
            ["memory-horizon", "--seeds", "0", "--out", "x"],
            "seeds: expected at least 1, got 0",
        ),
        (["memory-horizon", "--jobs", "0", "--out", "x"], "--jobs 0: expected at least 1"),
        (["text", "--text", "x", "--draws", "2", "--out", "x"], "text has one draw of the data"),
        (["memory-horizon", "--models", "a,fixed", "--out", "x"], "models: unknown 'a'; choose"),
        (["memory-horizon", "--set", "task.size=1", "--out", "x"], "unknown key task.size"),
        (["memory-horizon", "--set", "optimizer.x=1", "--out", "x"], "unknown key optimizer.x"),
        (["memory-horizon", "--set", "steps=5", "--out", "x"], "warmup_steps (100) must be below"),
        (["recall", "--out", "text.txt"], "already holds something"),
        (["figures", "--model", "model", "--out", "x"], "--text: give a text file"),
        (["figures", "--model", "missing", "--out", "x"], "--model missing: no such directory"),
        (["figures", "--model", "model", "--text", "missing.txt", "--out", "x"], "missing.txt"),
        (["figures", "--model", "model", "--text", "empty.txt", "--out", "x"], "holds no text"),
        (["figures", "--model", "missing", "--text", "text.txt", "--out", "x"], "missing"),
        (
            ["figures", "--model", "model", "--text", "text.txt", "--length", "0", "--out", "x"],
            "--length: expected at least 1, got 0",
        ),
        (["induction", "--resume", "--out", "x"], "no experiment to resume"),
    ],
)
def test_bad_input_to_the_others(model, work, capsys, argv, message):
    (work / "binary").write_bytes(bytes(range(256)))
    (work / "deep.jsonl").write_text("[" * 200_000)
    (work / "pipes").mkdir()
    for pipe in ("pipe", "pipes/a.txt"):
        os.mkfifo(work / pipe)
    assert message in fails(capsys, *argv)


@pytest.mark.parametrize(
    "argv",
    [["generate", "--modle", "x"], ["train", "--out"], ["eval"], ["bench", "x"], [], ["nothing"]],
)
def test_wrong_usage_is_one_line_too(capsys, argv):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("--help")


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


@pytest.mark.parametrize(
    "options",
    [
        ["--prompt", "a\0b"],
        ["--prompt", ""],
        ["--prompt", "\0", "--stop", "\0"],
        ["--prompt", "a", "--top-k", "9" * 30],
        ["--prompt", "a", "--temperature", "1e-320"],
        ["--prompt", "a", "--temperature", "1e300"],
        ["--prompt", "a", "--top-p", "1e-300"],
        ["--prompt", "a", "--min-p", "1e-320"],
        ["--prompt", "a", "--repetition-penalty", "1e-320"],
        ["--prompt", "a", "--repetition-penalty", "1e300"],
        ["--prompt", "a", "--seed", str(2**64 - 1)],
    ],
)
def test_odd_but_possible_requests_are_answered(model, capsys, options):
    assert main(["generate", "--model", "model", "--max-tokens", "3", *options]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_long_prompt_from_a_pipe_is_read(model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello world. " * 4_000)))
    assert main(["generate", "--model", "model", "--prompt", "-", "--max-tokens", "1"]) == 0
    assert capsys.readouterr().err.startswith("prompt: 52000 tokens")
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where the shell says <&-
    assert "standard input is closed" in fails(capsys, "generate", "--model", "m", "--prompt", "-")


def test_eval_takes_a_batch_larger_than_the_text(model, capsys):
    argv = ["eval", "--model", "model", "--data", "text.txt", "--context", "9999999999999999999999"]
    assert main([*argv, "--batch-size", "1" + "0" * 30]) == 0
    assert f"{len(TEXT):,}" in capsys.readouterr().out


def test_eval_carries_no_softmax(work, capsys):
    save_tiny_model(work / "softmax", mixer="softmax")
    line = fails(capsys, "eval", "--model", "softmax", "--data", "text.txt", "--carry")
    assert line == "error: --carry: a softmax model has no fixed-size state; use --stride"


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS)], ids=lambda command: " ".join(command)
)
def test_help_shows_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "example: gateloop" in capsys.readouterr().out


def test_memory_horizon_prints_what_it_wrote(work, capsys, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: [])  # takes most time
    argv = ["memory-horizon", "--preset", "bar", "--out", "out", "--seeds", "1"]
    for setting in ("steps=3", "optimizer.warmup_steps=1", "task.samples=32", "task.held_out=8"):
        argv += ["--set", setting]
    assert main(argv) == 0
    shown = capsys.readouterr()
    written = (work / "out" / "results.md").read_text()
    assert shown.out == f"{written}\n"
    assert f"`gateloop {' '.join(argv)}`" in written
    assert "# memory-horizon, preset bar, changed\n" in written
    assert "runs 2 of 2: fixed-0\n" in shown.err
    assert "already holds something" in fails(capsys, *argv)
    assert main([*argv, "--resume"]) == 0

    argv = ["figures", "--model", "out/runs/fixed-0", "--out", "pictures"]
    settings = work / "out" / "experiment.json"
    kept = settings.read_text()
    settings.write_text("{}")
    assert "not an experiment" in fails(capsys, *argv)
    settings.write_text(kept)
    assert main(argv) == 0
    drawn = {path.stem for path in (work / "pictures").iterdir()}
    assert {"transitions", "accuracy-over-span", "training-curves"} < drawn
    assert "leave it out" in fails(capsys, *argv, "--text", "text.txt")


def test_mlx_lm_commands_run_with_the_type_registered(model, capsys):
    argv = ["mlx-lm", "generate", "--model", str(model), "--prompt", "1", "--max-tokens", "2"]
    assert main(argv) == 0
    assert "tokens-per-sec" in capsys.readouterr().out


def test_ctrl_c_saves_and_exits_with_130(work):
    argv = [sys.executable, "-m", "mlx_gateloop", "train", "--config", "tiny.yaml"]
    argv += ["--data", "text.txt", "--out", "run", "--steps", "100000"]
    child = subprocess.Popen(argv, cwd=work, stderr=subprocess.PIPE, text=True)
    log = work / "run" / "log.jsonl"
    while not (log.exists() and log.stat().st_size) and child.poll() is None:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate()
    assert child.returncode == 130
    assert "interrupted at step" in errors
    assert "Traceback" not in errors
    assert (work / "run" / "checkpoints" / "last.safetensors").exists()


def test_a_compilation_cache_of_another_user_is_one_line(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("[Compile::eval_cpu] Failed to compile function I: ...\n20 more lines")

    monkeypatch.setattr("mlx_gateloop.bench.write_report", fail)
    assert main(["bench", "ops"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "set TMPDIR" in line


INTERRUPTED = """
import runpy, sys

awaited, program, *sys.argv[1:] = sys.argv[1:]

class CtrlC:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == awaited:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC)
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("mlx_gateloop", "mlx_gateloop.commands"),
        ("convert", "mlx.core"),
        ("app", "mlx_gateloop.commands"),
    ],
)
def test_ctrl_c_while_python_imports_is_no_traceback(program, module):
    words = {"mlx_gateloop": ["doctor"], "convert": ["a", "b"], "app": ["--model", "none"]}
    command = [sys.executable, "-c", INTERRUPTED, module, program, *words[program]]
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert child.returncode == 130
    assert child.stderr in ("", "interrupted\n")
