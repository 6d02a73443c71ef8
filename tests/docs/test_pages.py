"""The pages: links lead somewhere, blocks of Python and of commands run, named files exist."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
import yaml
from helpers.browser import request
from helpers.interpreter import TORCH
from helpers.models import save_tiny_model
from helpers.scripts import ROOT

from mlx_gateloop.commands import parser
from mlx_gateloop.distributed.hosts import free_ports

PAGES = sorted(
    path
    for folder in ("", "docs", "convert", "benchmarks", "app/embedded_models")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def name_of(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        # the site makes the API's anchors from names
        if anchor and target.name != "api.md":
            assert anchor in anchors(target), link


def test_the_menu_has_every_page():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    hidden = tuple(site["not_in_nav"].split())
    menu = set(re.findall(r"'([^' ]+\.md)'", str(site["nav"])))
    assert {name for page in PAGES if not (name := name_of(page)).startswith(hidden)} <= menu
    assert all((ROOT / name.replace(".py.md", ".py")).is_file() for name in menu)


# Values that a page leaves to its reader, and shorter runs.
INSTEAD = {
    "docs/watching.md": ("CHECKPOINT)", "'models/mine', model_config={'model_file': None})"),
    "docs/forgetting.md": ("...  # any generation", "model(mx.array([list(range(100))]))"),
}
# In blocks that run beside the commands, as files of their own.
SERVES, TRAINS = "server.load", "torch.save"
# The block of docs/app.md needs a server: tests/app/browser runs it. Models wrote others.
ELSEWHERE = {"docs/app.md", "convert/README.md", "app/embedded_models/code/README.md"}
ELSEWHERE |= {"benchmarks/results/completions.md"}
HERE = [p for p in PAGES if PYTHON.search(p.read_text("utf-8")) and name_of(p) not in ELSEWHERE]


@pytest.mark.parametrize("page", HERE, ids=name_of)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    (tmp_path / "app").symlink_to(ROOT / "app")
    save_tiny_model(tmp_path / "models" / "mine", chat=True)
    monkeypatch.chdir(tmp_path)
    names = {"mx": mx, "tokens": mx.array([[1, 2]]), "cache": None}
    for code in PYTHON.findall(page.read_text("utf-8")):
        if SERVES not in code:
            exec(code.replace(*INSTEAD.get(name_of(page), ("", ""))), names)


def commands():
    """Every call of `gateloop` in the pages, in code blocks and (with --out) in tables."""
    found = set()
    records = ROOT / "benchmarks" / "results"  # they keep the commands that made them
    for page in (page for page in PAGES if records not in page.parents):
        text = re.sub(r"\\\n\s*", "", page.read_text("utf-8"))
        found |= set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?(gateloop .*)$", text, re.MULTILINE))
        found |= set(re.findall(r"`(gateloop [^`]*--out [^`]*)`", text))
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command):
    words = shlex.split(command)[1:]  # a Mac's shell takes no comments
    words = words[: words.index("&&")] if "&&" in words else words
    assert parser.parse(words).run


COMMANDS = re.compile(r"^ *```(sh|console)\n(.*?)```", re.DOTALL | re.MULTILINE)
# Lines that are not run, by words in them, and why.
SKIPPED = {
    "-m venv": "the tests have an environment",
    "pip install": "network; make test-install installs the package",
    "make demo": "tests/app/browser opens the app that it starts", "--hostfile": "a second machine",
    "--preset paper": "minutes even of two steps",
    "experiment ablations": "ten models: minutes even of two steps",
    "sudo ": "two machines and root", "ulimit ": "shows an error of mlx-lm's",
    "wikitext-103": "network, and a model of 125M parameters", "--model ID": "network",
    "python benchmarks/": "minutes; tests/app/server has the short form",
    "pytest ": "the suite has these tests",
}  # fmt: skip
# What is added to a line that has these words: less work, and a free port.
STEPS = " --set optimizer.warmup_steps=1 --set steps=2 --set eval_every=2 --set checkpoint_every=2"
WIDTHS = " --set model.hidden_size=64 --set model.intermediate_size=64 --set data.length=16"
ADDED = {
    "train --config": f"{STEPS}{WIDTHS} --set tokenizer.vocab_size=300",
    "--minutes 5": " --minutes 1", "experiment ": f"{STEPS} --set log_every=1 --seeds 1",
    "--models data_controlled": " --models data_controlled", "--tune 12": " --tune 1",
    "mlx-lm lora ": " --iters 2", "gateloop tune ": " --steps 2 --length 16",
    "generate ": " --max-tokens 4", "mlx-lm server ": " --port {port}",
    "gateloop app ": " --port {port}",
}  # fmt: skip
PROGRAMS = {"gateloop ": "-m mlx_gateloop ", "mlx_lm.": "-m mlx_lm "}
PROGRAMS |= {"OMP_NUM_THREADS=1 python ": "", "python ": ""}
TEXT = "".join(f"ROMEO: Once {n} plus {n} was {n + n}, and so on.\n" for n in range(900))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_no_comments(page):
    """The shell of a Mac, zsh, takes none in what is typed or pasted."""
    for kind, block in COMMANDS.findall(page.read_text("utf-8")):
        lines = [line for line in block.splitlines() if kind == "sh" or line.startswith("$")]
        assert not [line for line in lines if re.search(r"(^|\s)#", line)]


def lines_to_run(page):
    """The commands of a page's blocks, in order, each with what is added to it."""
    found = []
    for kind, block in COMMANDS.findall(re.sub(r"\\\n\s*", "", page.read_text("utf-8"))):
        for line in block.splitlines():
            is_line = line.startswith("$ ") if kind == "console" else line.strip()
            if is_line and not any(words in line for words in SKIPPED):
                line = line.removeprefix("$ ").strip()
                found.append(line + "".join(ADDED[words] for words in ADDED if words in line))
    return found


def run_line(line, folder):
    """Run a line; a server is interrupted when it listens, a chat gets a message."""
    port = free_ports(1)
    is_server, line = "{port}" in line, line.format(port=port)
    for program, module in PROGRAMS.items():
        if line.startswith(program):
            line = f"{sys.executable} {module}{line.removeprefix(program)}"
    env = os.environ | {"BROWSER": "true", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": TORCH} if re.search("convert|torch", line) else {}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(shlex.split(line), cwd=folder, env=env, text=True, **pipes) as process:
        output = ""
        while is_server and not re.search(r"http://127|Starting httpd", output):
            assert process.poll() is None, output
            output += process.stdout.readline()
        if "Starting httpd" in output:
            body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
            headers = {"Content-Type": "application/json"}
            url = f"http://127.0.0.1:{port}/v1/completions"
            assert request(url, data=body, headers=headers).status == 200
        if is_server:
            process.send_signal(signal.SIGINT)
        output += process.communicate("hello\nq\n", timeout=600)[0]
    assert process.returncode == 0 or (is_server and process.returncode == 130), line + output
    assert "Traceback" not in output, line + output


def run_page(page, folder, models):
    """Run a page's commands beside its reader's texts, and `models` if it trains none."""
    from helpers.checkpoints import torch, torch_model

    lines = lines_to_run(page)
    (folder / "folder").mkdir(parents=True)
    (folder / "trained").mkdir()
    for name in ("my.txt", "calm.txt", "held_out.txt", "tinyshakespeare.txt"):
        (folder / name).write_text(TEXT)
    for name in ("train", "valid"):
        rows = "".join(json.dumps({"text": row}) + "\n" for row in TEXT.splitlines()[:8])
        (folder / "folder" / f"{name}.jsonl").write_text(rows)
    torch.save(torch_model().state_dict(), folder / "weights.pt")
    for name in ("app", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    scripts = PYTHON.findall(page.read_text("utf-8"))
    if training := next((code for code in scripts if TRAINS in code), None):
        (folder / "train_torch.py").write_text(training.replace("60", "1"))  # seconds
    elif models and not any("--out models/mine" in line for line in lines):
        shutil.copytree(models / "mine", folder / "models" / "mine")
    for code in scripts:
        if SERVES in code:
            (folder / "serve.py").write_text(code)
            lines.append("python serve.py --model models/mine --port {port}")
    for line in lines:
        run_line(line, folder)
    return folder / "models"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return run_page(ROOT / "README.md", tmp_path_factory.mktemp("docs") / "readme", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent in (ROOT / "docs", ROOT / "convert") and lines_to_run(p)],
    ids=name_of,
)
def test_command_blocks_run_in_order(page, models, tmp_path):
    run_page(page, tmp_path / "here", models)
    if page.name == "watching.md":
        with np.load(tmp_path / "here" / "trace.npz") as trace:
            assert trace["magnitude"].shape[1] > 3


# In Hyena's repository, in saved models and in mlx-lm.
OF_OTHERS = {"configs/dataset/wt103.yaml", "gateloop.py"}
OF_OTHERS |= {"mlx_lm/models/gateloop.py", "tests/test_models.py"}
NAMED = re.compile(r"`([\w./-]+(?:\.py|\.yaml|/))`")


@pytest.mark.parametrize(
    "page",  # CHANGELOG.md tells of the past too
    [p for p in PAGES if p.parent in (ROOT, ROOT / "docs") and p.name != "CHANGELOG.md"],
    ids=name_of,
)
def test_named_files_exist(page):
    folders = [ROOT, ROOT / "mlx_gateloop", page.parent, ROOT / "tests"]
    for name in set(NAMED.findall(page.read_text("utf-8"))) - OF_OTHERS:
        assert any((folder / name).exists() for folder in folders), name
