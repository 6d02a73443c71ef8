"""The command as a user runs it: usage, bad input, exit codes."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.commands import fails
from helpers.interpreter import python
from helpers.scripts import ROOT

from mlx_gateloop.cli import main
from mlx_gateloop.commands import COMMANDS
from mlx_gateloop.commands.experiment import NAMES

EVAL = "eval --model model --data"
GENERATE = "generate --model model"
EVERY = [[], *([name] for name in COMMANDS), *(["experiment", name] for name in NAMES)]


def test_a_notebooks_backend_of_pictures_is_not_needed():
    code = "import mlx_gateloop.commands, matplotlib; print(matplotlib.get_backend())"
    assert python(code, MPLBACKEND="module://matplotlib_inline.backend_inline") == "agg"


BAD = [
    ("eval --model missing --data text.txt", "missing"),
    (f"{EVAL} text.txt --context 8 --stride 9", "--stride: expected 1 to the context's 8 tokens"),
    (f"{EVAL} text.txt --split test", "no test part"),
    (f"{EVAL} pipe", "pipe: not a regular file"),
    (f"{EVAL} pipes", "no .txt, .md, .text, .jsonl file"),
    (f"{EVAL} a\0b", "no such file or folder"),
    (f"{EVAL} a\x1b[2J\u202e\u3000b", "a\\x1b[2J\\u202e\u3000b: no such file"),
    ("read pipe --model model --out x", "pipe: not a regular file"),
    (f"{GENERATE} --state pipe", "pipe: not a regular file"),
    ("watch --model model --out pipe/x", "pipe is not a folder to write in"),
    ("mlx-lm lora --train --model model --data none", "--data: no such folder"),
    (f"{GENERATE} --system kind", "--system"),
    ("train --data text.txt --dry-run --report-to none", "--report-to none: unknown"),
    (f"{GENERATE} --draft-model model --repetition-penalty 1.3", "leave one out"),
    (f"{GENERATE} --max-tokens {'9' * 30}", "max_tokens: expected 1 to 1,0"),
    (f"{GENERATE} --prompt a\ud800", "--prompt: not UTF-8 text (at byte 1"),
    (f"generate --model {'m' * 300}", "m" * 300),
    ("bench --quick --out text.txt", "text.txt"),
    ("mlx-lm generate --model ./missing", "no such model directory"),
    ("mlx-lm generate --model missing", "missing: no directory, and no hub to ask"),
    ("mlx-lm frobnicate", "mlx-lm frobnicate: no such command"),
    ("mlx-lm convert --hf-path model --mlx-path model", "already exists"),
    ("page --model model --out model/model.safetensors", "name ends in .html"),
    ("page --model model --out pipe/page.html", "pipe is not a folder to write in"),
    ("train --steps 2 --set epochs=1 --out x", "give only one of them"),
    (f"train --steps 2 --out x --data {'d' * 300}", "d" * 300),
    ("experiment memory-horizon --out x --preset large", "choose small, running_sum, paper"),
    ("experiment text --out x --text x --set task.file=y", "--set task.file: use --text"),
    ("convert pipe.pt x --tokenizer bytes", "pipe.pt: not a regular file"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_one_line_without_files(model, work, capsys, monkeypatch, words, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (work / "pipes").mkdir()
    for pipe in ("pipe", "pipes/a.txt", "pipe.pt"):
        os.mkfifo(work / pipe)
    assert message in fails(capsys, *words.split(" "))
    assert not (work / "x").exists()


WRONG = ["generate --modle x", "train --out", "eval", "bench x", "", "nothing", "experiment"]
WRONG += ["experiment chess", "experiment recall --x", "experiment recall --out x --jobs 0.5"]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_one_line_too(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("--help")
    assert "invalid positive" not in line  # the name of a function


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_help_shows_an_example(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    assert "example: gateloop" in capsys.readouterr().out


def test_memory_horizon_prints_what_it_wrote(work, capsys, without_pictures):
    argv = ["experiment", "memory-horizon", "--preset=running_sum", "--out=out", "--seeds=1"]
    for setting in ("steps=3", "optimizer.warmup_steps=1", "task.samples=32", "task.held_out=8"):
        argv += ["--set", setting]
    assert main(argv) == 0
    shown = capsys.readouterr()
    written = (work / "out" / "results.md").read_text()
    assert shown.out == f"{written}\n"
    assert f"`gateloop {' '.join(argv)}`" in written
    assert "# memory-horizon, preset running_sum\n" in written
    assert "runs 2 of 2: fixed-0\n" in shown.err
    assert main([*argv, "--resume"]) == 0


@pytest.mark.parametrize(("error", "advice"), [
    (RuntimeError("[Compile::eval_cpu] Failed to compile function I:\n20 lines"), "TMPDIR"),
    (RuntimeError("Could not load C++ shared library /tmp/x.so: failed to map"), "TMPDIR"),
    (RuntimeError("Could not determine home directory."), "set HOME"),
    (ValueError("not allowed to raise maximum limit"), "run: ulimit -n 4096"),  # by mlx-lm
    (ImportError("Using SOCKS proxy, but the 'socksio' package is not installed."), "socksio"),
    (ValueError("Unknown scheme for proxy URL URL('foo://x')"), "unset ALL_PROXY"),
])  # fmt: skip
def test_a_fault_of_the_environment_is_one_line(monkeypatch, capsys, error, advice):
    monkeypatch.setattr("mlx_gateloop.bench.report.write_report", Mock(side_effect=error))
    assert advice in fails(capsys, "bench", "ops")


@pytest.mark.parametrize("is_full", [True] * Path("/dev/full").exists() + [False])
def test_output_that_cannot_be_written(is_full):
    reader, pipe = os.pipe()
    os.close(reader)  # as `head` does
    out = os.open("/dev/full", os.O_WRONLY) if is_full else pipe
    command = [sys.executable, "-m", "mlx_gateloop", "doctor"]
    child = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.returncode == (2 if is_full else 0)
    assert child.stderr == ("error: No space left on device\n" if is_full else "")


INTERRUPTED = """
import runpy, signal, sys, types

awaited, program, *sys.argv[1:] = sys.argv[1:]
press = lambda name, *_: signal.raise_signal(signal.SIGINT) if name == awaited else None
sys.meta_path.insert(0, types.SimpleNamespace(find_spec=press))
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
IMPORTING = ["mlx_gateloop.commands mlx_gateloop doctor", "mlx.core convert a b"]
IMPORTING += ["mlx_gateloop.commands app --model none"]


@pytest.mark.parametrize("words", IMPORTING)
def test_ctrl_c_while_python_imports_is_no_traceback(words):
    command = [sys.executable, "-c", INTERRUPTED, *words.split()]
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert child.returncode == 130
    assert child.stderr in ("", "interrupted\n")
