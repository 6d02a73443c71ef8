"""The pages: links lead somewhere, Python blocks run, and commands and files are known."""

import re
import shlex
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers.models import save_tiny_model
from helpers.recurrent import save_recurrent_model

from mlx_gateloop.commands import parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("", "docs", "convert", "benchmarks", "app/embedded_models")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
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


# Values that a page leaves to its reader, and shorter runs.
INSTEAD = {
    "docs/watching.md": ("CHECKPOINT", "'models/mine'"),
    "docs/forgetting.md": ("...  # any generation", "model(mx.array([list(range(100))]))"),
    "docs/first-gpu.md": ("(8, 4096, 1024)", "(1, 64, 32)"),
    "convert/README.md": ("60", "1"),  # seconds of training
}
# The block of docs/app.md needs a server: tests/app/browser runs it. Models wrote the others.
ELSEWHERE = {"docs/app.md", "app/embedded_models/code/README.md"}
ELSEWHERE |= {"benchmarks/results/completions.md"}
LONG = {"convert/README.md"}  # it learns a tokenizer


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if name_of(page) in LONG else [])
        for page in PAGES
        if PYTHON.search(page.read_text("utf-8")) and name_of(page) not in ELSEWHERE
    ],
    ids=name_of,
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    chat, server = (pytest.importorskip(f"mlx_lm.{name}") for name in ("chat", "server"))
    if "import torch" in page.read_text():
        pytest.importorskip("gateloop_transformer", reason="the source model's library")
    (tmp_path / "app").symlink_to(ROOT / "app")
    mine = tmp_path / "models" / "mine"
    if page.name == "watching.md":  # mlx-lm loads it
        save_recurrent_model(mine, "falcon_h1")
    else:
        save_tiny_model(mine, chat=True)
    monkeypatch.chdir(tmp_path)
    Path("trained").mkdir()

    def answer_one_message():
        """Stand for the server with the chat, which takes its model by the same name."""
        messages = iter(["hello", "q"])
        monkeypatch.setattr("builtins.input", lambda *_: next(messages))
        monkeypatch.setattr(chat, "load", lambda *_, **options: server.load(**options)[:2])
        monkeypatch.setattr(sys, "argv", ["chat", "--model", "models/mine", "--max-tokens", "4"])
        chat.main()

    monkeypatch.setattr(server, "load", server.load)  # a page replaces it
    monkeypatch.setattr(server, "main", answer_one_message)
    names = {"mx": mx, "tokens": mx.array([[1, 2]]), "cache": None}
    for code in PYTHON.findall(page.read_text("utf-8")):
        exec(code.replace(*INSTEAD.get(name_of(page), ("", ""))), names)
    if Path("trace.npz").exists():
        with np.load("trace.npz") as trace:
            assert trace["magnitude"].shape[1] >= len("hello") + 4


def commands() -> list[str]:
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
    words = shlex.split(command.partition("  #")[0].replace("\n", " "), comments=True)[1:]
    words = words[: words.index("&&")] if "&&" in words else words
    assert parser.parse(words).run


# In Hyena's repository, in saved models and in mlx-lm.
OF_OTHERS = {"configs/dataset/wt103.yaml", "gateloop.py"}
OF_OTHERS |= {"mlx_lm/models/gateloop.py", "tests/test_models.py"}
NAMED = re.compile(r"`([\w./-]+(?:\.py|\.yaml|/))`")


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name
)
def test_named_files_exist(page):
    if page.name == "CHANGELOG.md":  # tells of the past too
        return
    folders = [ROOT, ROOT / "mlx_gateloop", page.parent, ROOT / "tests"]
    for name in set(NAMED.findall(page.read_text("utf-8"))) - OF_OTHERS:
        assert any((folder / name).exists() for folder in folders), name
