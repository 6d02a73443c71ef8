import json

import pytest
from helpers.scripts import ROOT, load_script
from mlx.utils import tree_flatten


def test_recordings_are_made(tmp_path, monkeypatch):
    pages = load_script("docs/shared_pages.py")
    monkeypatch.setattr(pages, "OUT", tmp_path / "shared")
    pages.main()
    texts = {file.stem: file.read_text("utf-8") for file in (tmp_path / "shared").iterdir()}
    assert texts.keys() == {"demo", "demo-fixed", "memory-horizon", "model"}
    assert '"forgotten":[{' in texts["demo"].replace(" ", "")
    assert "sums since the last reset" in texts["memory-horizon"]


@pytest.mark.slow
def test_the_tour_holds_what_the_embedded_models_compute():
    recorded = json.loads((ROOT / "app/page/static/tour.json").read_text("utf-8"))
    again = json.loads(json.dumps(load_script("docs/tour_recording.py").record()))
    assert tree_flatten(again, destination={}) == {
        path: pytest.approx(value, rel=1e-3, abs=1e-3) if isinstance(value, float) else value
        for path, value in tree_flatten(recorded)
    }
