"""The pages: their links lead somewhere, and README's Python runs."""

import re
import shlex
from pathlib import Path

import pytest

from mlx_gateloop.commands import parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in ("", "docs", "convert", "benchmarks", "app/embedded_models")
    for path in (ROOT / folder).glob("**/*.md" if folder else "*.md")
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"```.*?```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_the_python_of_the_readme_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(code, names)
    assert capsys.readouterr().out
    assert names["y"].shape == (2, 1024, 64)


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
ELSEWHERE = {"configs/dataset/wt103.yaml", "gateloop.py"}
ELSEWHERE |= {"mlx_lm/models/gateloop.py", "tests/test_models.py"}
NAMED = re.compile(r"`([\w./-]+(?:\.py|\.yaml|/))`")


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name
)
def test_named_files_exist(page):
    if page.name == "CHANGELOG.md":  # tells of the past too
        return
    folders = [ROOT, ROOT / "mlx_gateloop", page.parent]
    for name in NAMED.findall(page.read_text("utf-8")):
        if name not in ELSEWHERE:
            places = (folder / name for folder in [*folders, ROOT / "tests"])
            assert any(place.exists() for place in places), name
