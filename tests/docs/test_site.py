"""The pages that are made for the documentation's site."""

from helpers.scripts import load_script


def test_recordings_are_made(tmp_path, monkeypatch):
    pages = load_script("docs/shared_pages.py")
    monkeypatch.setattr(pages, "OUT", tmp_path / "shared")
    pages.main()
    texts = {file.stem: file.read_text("utf-8") for file in (tmp_path / "shared").iterdir()}
    assert texts.keys() == {"demo", "demo-fixed", "memory-horizon", "model"}
    assert '"forgotten":[{' in texts["demo"].replace(" ", "")
    assert "sums since the last reset" in texts["memory-horizon"]
