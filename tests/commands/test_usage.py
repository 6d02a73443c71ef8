"""The command as a user runs it: usage, bad input, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import fails

from mlx_gateloop.cli import main
from mlx_gateloop.commands import COMMANDS
from mlx_gateloop.commands.experiment import NAMES

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("command", ["eval --data text.txt", "generate --max-tokens 2"])
def test_an_embedded_model_is_taken_by_its_name(command, work):
    (work / "text.txt").write_text("A list is")
    assert main([*command.split(), "--model", "demo"]) == 0


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_a_notebooks_backend_of_pictures_is_not_needed(backend, model):
    command = [sys.executable, "-m", "mlx_gateloop", "figures", "--model", "model"]
    done = subprocess.run(
        [*command, "--text", "text.txt", "--out", "pictures", "--length", "9"],
        env=os.environ | {"MPLBACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


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
        (["figures", "--model", "model", "--out", "x"], "--text: give a text file"),
        (["figures", "--model", "missing", "--out", "x"], "--model missing: no such directory"),
        (["figures", "--model", "model", "--text", "missing.txt", "--out", "x"], "missing.txt"),
        (["figures", "--model", "model", "--text", "empty.txt", "--out", "x"], "holds no text"),
        (["figures", "--model", "missing", "--text", "text.txt", "--out", "x"], "missing"),
        (
            ["figures", "--model", "model", "--text", "text.txt", "--length", "0", "--out", "x"],
            "--length: expected at least 1, got 0",
        ),
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
    ("words", "message"),
    [
        ("memory-horizon --preset large", "choose small, running_sum, paper"),
        ("memory-horizon --seeds 0", "seeds: expected 1 to 1000, got 0"),
        ("memory-horizon --jobs 0", "--jobs 0: expected at least 1"),
        ("ablations --jobs 0", "--jobs 0: expected at least 1"),
        ("text --text x --draws 2", "text has one draw of the data"),
        ("text --text x --set task.file=y", "--set task.file: use --text"),
        ("memory-horizon --models a,fixed", "models: unknown 'a'; choose"),
        ("memory-horizon --set task.size=1", "unknown key task.size"),
        ("memory-horizon --set optimizer.x=1", "unknown key optimizer.x"),
        ("memory-horizon --set steps=5", "warmup_steps (100) must be below"),
        ("recall --set steps=", "--set steps=: expected KEY=VALUE, such as"),
        ("induction --resume", "no experiment to resume"),
    ],
)
def test_bad_input_to_experiments(work, capsys, words, message):
    assert message in fails(capsys, "experiment", *words.split(), "--out", "x")
    assert not (work / "x").exists()


@pytest.mark.parametrize(
    "argv",
    [
        *(["generate", "--modle", "x"], ["train", "--out"], ["eval"], ["bench", "x"], []),
        *(["nothing"], ["experiment"], ["experiment", "chess"], ["experiment", "recall", "--x"]),
    ],
)
def test_wrong_usage_is_one_line_too(capsys, argv):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("--help")


@pytest.mark.parametrize(
    "command",
    [[], *([name] for name in COMMANDS), *(["experiment", name] for name in NAMES)],
    ids=" ".join,
)
def test_help_shows_an_example(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "example: gateloop" in capsys.readouterr().out


def test_memory_horizon_prints_what_it_wrote(work, capsys, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.experiments.report._draw", lambda *_: None)  # takes most time
    argv = ["experiment", "memory-horizon", "--preset", "running_sum"]
    argv += ["--out", "out", "--seeds", "1"]
    for setting in ("steps=3", "optimizer.warmup_steps=1", "task.samples=32", "task.held_out=8"):
        argv += ["--set", setting]
    assert main(argv) == 0
    shown = capsys.readouterr()
    written = (work / "out" / "results.md").read_text()
    assert shown.out == f"{written}\n"
    assert f"`gateloop {' '.join(argv)}`" in written
    assert "# memory-horizon, preset running_sum\n" in written
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


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("[Compile::eval_cpu] Failed to compile function I:\n20 lines"), "TMPDIR"),
        (RuntimeError("Could not load C++ shared library /tmp/x.so: failed to map"), "TMPDIR"),
        (RuntimeError("Could not determine home directory."), "set HOME"),
        (ImportError("Using SOCKS proxy, but the 'socksio' package is not installed."), "socksio"),
        (ValueError("Unknown scheme for proxy URL URL('foo://x')"), "unset ALL_PROXY"),
    ],
)
def test_a_fault_of_the_environment_is_one_line(monkeypatch, capsys, error, advice):
    def fail(*_):
        raise error

    monkeypatch.setattr("mlx_gateloop.bench.write_report", fail)
    assert main(["bench", "ops"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line


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
