"""The documentation's site: what its first page shows, and the pages that are made for it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.scripts import load_script


def test_the_first_page_shows_a_recording_above_its_picture():
    for package in ("mkdocs", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    site = load_script("docs/site.py")

    def shown(name):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return site.on_page_content("<h1>x</h1><p>y</p><p><img src='a'></p><p><img></p>", page)

    first = shown("README.md")
    assert first.count("<iframe") == 1
    assert first.index("<iframe") < first.index("<p><img")
    assert 'sandbox="allow-scripts"' in first
    source = Path(re.search(r'src="([^"]+)"', first)[1])
    assert source.stem in load_script("docs/shared_pages.py").FORGOTTEN  # `make docs` makes it
    assert any(source.match(pattern.replace("**/*", "*/*")) for pattern in site.SHOWN)
    assert "<iframe" not in shown("docs/app.md")


def test_recordings_are_made(tmp_path, monkeypatch):
    pages = load_script("docs/shared_pages.py")
    monkeypatch.setattr(pages, "OUT", tmp_path / "shared")
    pages.main()
    texts = {file.stem: file.read_text("utf-8") for file in (tmp_path / "shared").iterdir()}
    assert texts.keys() == {"demo", "demo-fixed", "memory-horizon"}
    assert '"forgotten":[{' in texts["demo"].replace(" ", "")
    assert "RESET" in texts["memory-horizon"]
