"""mlx-lm runs a saved directory without this package, by the `gateloop.py` in it.

The long form, `make standalone`, installs mlx-lm alone and runs five more commands.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import mlx.core as mx
import pytest
from helpers.family import save_family_model
from helpers.mlx_lm_commands import greedy
from helpers.mlx_lm_server import serving, text_of

import mlx_gateloop as gl

PROMPT = "What does str.split do?"
TRUST = "--trust-remote-code"
COUNT = 12


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = tmp_path_factory.mktemp("standalone") / "demo"
    gl.save(*gl.load("demo"), path)
    return path


def answer(directory, adapter=None):
    model, tokenizer = gl.load(directory)
    if adapter:
        from mlx_lm.utils import load_adapters

        model = load_adapters(model, str(adapter))
        model.eval()
    messages = [{"role": "user", "content": PROMPT}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answer = tokenizer.decode(greedy(model, tokenizer, text, COUNT), skip_special_tokens=True)
    return answer.strip("\n")


class Interpreter:
    """A Python that cannot import this package."""

    def __init__(self, folder, *command, **environment):
        self.folder = folder  # where Python is started, it looks for modules
        self.command = [*map(str, command)]
        self.environment = os.environ | environment | {"HF_HUB_OFFLINE": "1"}
        self.mlx_lm = [*self.command, "-m", "mlx_lm"]
        assert "No module named 'mlx_gateloop" in self.run("-c", "import mlx_gateloop.io").stderr

    def run(self, *words, **options):
        options |= {"cwd": self.folder, "env": self.environment, "capture_output": True}
        return subprocess.run([*self.command, *map(str, words)], text=True, **options)

    def out(self, *words, **options):
        """The output of an mlx_lm command that must succeed."""
        done = self.run("-m", "mlx_lm", *words, **options)
        assert done.returncode == 0, done.stderr
        return re.sub(r"\x1b\[[\d;]*\w", "", done.stdout)  # without colours

    def generates(self, directory, *options):
        words = ["--model", directory, "--prompt", PROMPT, "--max-tokens", COUNT, TRUST]
        return self.out("generate", *words, *options).split("=" * 10)[1].strip("\n")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """This Python without what `.pth` files add, which is how this package is installed."""
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    folder = tmp_path_factory.mktemp("bare")
    return Interpreter(folder, sys.executable, "-S", PYTHONPATH=os.pathsep.join(packages))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """An environment that has mlx-lm and its requirements."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = Interpreter(folder, folder / "bin" / "python")
    packages = ["mlx-lm", "mlx[cpu]" if sys.platform == "linux" else "mlx"]
    done = python.run("-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    assert done.returncode == 0, done.stderr
    return python


def test_generate_gives_our_answer(demo, bare):
    assert bare.generates(demo) == answer(demo)


@pytest.mark.slow
def test_a_model_of_the_family_generates_too(bare, tmp_path):
    save_family_model(tmp_path, "gla_grouped")
    assert bare.generates(tmp_path) == answer(tmp_path)


@pytest.mark.slow
def test_chat_and_server_in_a_fresh_environment(demo, fresh, tmp_path):
    assert fresh.generates(demo) == answer(demo)
    options = ["--model", demo, "--max-tokens", COUNT, TRUST]
    assert answer(demo) in fresh.out("chat", *options, input=f"{PROMPT}\nq\n")
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": COUNT}
    with serving(demo, tmp_path / "log", TRUST, mlx_lm=fresh.mlx_lm) as server:
        _, reply = server.post("/v1/chat/completions", body | {"temperature": 0})
    assert text_of(reply).strip("\n") == answer(demo)


@pytest.mark.slow
def test_lora_fuse_and_convert_in_a_fresh_environment(demo, fresh, tmp_path):
    rows = [json.dumps({"text": f"{n} times {n} is {n * n}."}) for n in range(40, 56)]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    adapter, fused, half = (tmp_path / name for name in ("adapter", "fused", "half"))
    sizes = ["--iters", 4, "--batch-size", 4, "--num-layers", 2, "--val-batches", 1]
    where = ["--model", demo, TRUST, "--data", tmp_path, "--adapter-path", adapter]
    fresh.out("lora", "--train", *where, *sizes)
    tuned = answer(demo, adapter=adapter)
    assert fresh.generates(demo, "--adapter-path", adapter) == tuned

    fresh.out("fuse", "--model", demo, "--adapter-path", adapter, "--save-path", fused, TRUST)
    assert fresh.generates(fused) == answer(fused) == tuned

    expand = ["--dequantize", "--dtype", "bfloat16"]  # the demo is stored in 8 bits
    fresh.out("convert", "--model", demo, "--mlx-path", half, *expand, TRUST)
    assert mx.load(str(half / "model.safetensors"))["lm_head.weight"].dtype == mx.bfloat16
    fresh.generates(half)
    quantized = tmp_path / "quantized"
    fresh.out("convert", "--model", half, "--mlx-path", quantized, "-q", "--q-bits", 8, TRUST)
    assert fresh.generates(quantized)
    gl.load(quantized)  # the transitions are whole, or it would not fit
