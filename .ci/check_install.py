"""Install a wheel in empty environments without a compiler, and run its commands there.

Each extra gets its own environment: before it is installed the command must name it, afterwards it
must work.

    python .ci/check_install.py [WHEEL]      without WHEEL, one is built
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"CC": "/no/cc", "CXX": "/no/c++"}
SAVE_WEIGHTS = """
import torch
sizes = {"token_emb.weight": (262, 8), "layers.0.0.norm.gamma": (8,),
    "layers.0.0.fn.to_qkv.weight": (24, 8), "layers.0.0.fn.to_a.0.weight": (16, 8),
    "layers.0.0.fn.to_a.0.bias": (16,), "layers.0.0.fn.to_gates.0.weight": (8, 8),
    "layers.0.0.fn.to_out.weight": (8, 8), "layers.0.1.norm.gamma": (8,),
    "layers.0.1.fn.0.weight": (16, 8), "layers.0.1.fn.0.bias": (16,),
    "layers.0.1.fn.2.weight": (8, 16), "layers.0.1.fn.2.bias": (8,),
    "to_logits.0.gamma": (8,), "to_logits.1.weight": (262, 8)}
torch.save({name: torch.randn(size) for name, size in sizes.items()}, "weights.pt")
"""
SETTINGS = [
    "model={hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1}",
    "tokenizer={kind: bytes}",
    "data={length: 16, batch_size: 2}",
    "optimizer.warmup_steps=1",
]
TRAIN = ["--data", "text.txt", "--out", "trained", "--steps", "2"]
TRAIN += [word for setting in SETTINGS for word in ("--set", setting)]


class Environment:
    """A virtual environment in `folder`, with the wheel and nothing else."""

    def __init__(self, folder: Path, wheel: str) -> None:
        self.folder, self.wheel = folder, wheel
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv" / "bin"
        self.install("")
        (folder / "weights.pt").write_bytes(b"")
        (folder / "text.txt").write_text("".join(f"{n} and {n} is {2 * n}\n" for n in range(300)))

    def install(self, extra: str) -> None:
        wheel = self.wheel + (f"[{extra}]" if extra else "")
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel)

    def run(self, program: str, *words: str) -> str:
        """The output of a command that must succeed."""
        command = [self.bin / program, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout

    def names_extra(self, extra: str, *words: str) -> None:
        """Check that a command exits with 2 and one line that names the extra it needs."""
        command = [self.bin / "gateloop", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True
        )
        line = done.stderr
        assert done.returncode == 2, f"{command}: exit code {done.returncode}\n{line}"
        assert line.count("\n") == 1, line
        assert f'pip install "mlx-gateloop[{extra}]"' in line, line


def check_app(environment: Environment) -> None:
    environment.names_extra("app", "app", "--port", "7899")
    environment.install("app")
    environment.run("gateloop", "app", "--help")
    app = subprocess.Popen(
        [environment.bin / "gateloop", "app", "--port", "7899"],
        cwd=environment.folder,
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert app.stdout is not None
        line = app.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        url = found[0].rstrip("/")
        with urllib.request.urlopen(url) as page:
            assert page.status == 200
        print(generate(url))
    finally:
        app.terminate()
        app.wait()


def generate(url: str) -> str:
    """One generation through the endpoint that gradio_client uses."""
    body = json.dumps({"data": ["Hello", "", True, 8, 0.0, 1.0, None, False]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/gradio_api/call/generate", body, headers)
    with urllib.request.urlopen(request) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{url}/gradio_api/call/generate/{event}") as answer:
        text = answer.read().decode()
    assert "event: complete" in text, text
    return text


def check_convert(environment: Environment) -> None:
    words = ("convert", "weights.pt", "converted", "--tokenizer", "bytes")
    environment.names_extra("torch", *words)
    environment.install("convert,torch")
    environment.run("python", "-c", SAVE_WEIGHTS)
    print(environment.run("gateloop", *words))
    prompt = ("--model", "converted", "--prompt", "Hello", "--max-tokens", "4")
    environment.run("gateloop", "generate", *prompt)


def check_train(environment: Environment) -> None:
    environment.names_extra("train", "train", *TRAIN)
    environment.install("train")
    print(environment.run("gateloop", "train", *TRAIN))


def build(folder: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    (wheel,) = folder.glob("*.whl")
    return str(wheel)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        wheel = str(Path(sys.argv[1]).resolve()) if sys.argv[1:] else build(folder)

        def run(check: Callable[[Environment], None]) -> str:
            start, place = time.monotonic(), folder / check.__name__
            place.mkdir()
            environment = Environment(place, wheel)
            environment.run("gateloop", "doctor")
            check(environment)
            return f"{check.__name__}: passed in {time.monotonic() - start:.0f} s"

        for line in pool.map(run, (check_app, check_convert, check_train)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
