"""The documentation's site: what its first page shows."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site():
    for package in ("mkdocs", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_page_shows_a_recording_above_its_picture(site):
    def shown(name):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return site.on_page_content("<h1>x</h1><p>y</p><p><img src='a'></p><p><img></p>", page)

    first = shown("README.md")
    assert first.count("<iframe") == 1
    assert first.index("<iframe") < first.index("<p><img")
    source = re.search(r'src="([^"]+)"', first)[1]
    assert (ROOT / source).is_file()
    assert any(Path(source).match(pattern.replace("**/*", "*/*")) for pattern in site.SHOWN)
    assert 'sandbox="allow-scripts"' in first
    assert "<iframe" not in shown("docs/app.md")
