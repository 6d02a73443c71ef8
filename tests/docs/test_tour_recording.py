"""The recording of the app's tour holds what the embedded models compute."""

import json

import pytest
from helpers.scripts import ROOT, load_script
from mlx.utils import tree_flatten

RECORDED = json.loads((ROOT / "app/page/static/tour.json").read_text("utf-8"))


@pytest.mark.slow
def test_the_command_makes_what_is_recorded():
    again = json.loads(json.dumps(load_script("docs/tour_recording.py").record()))
    assert tree_flatten(again, destination={}) == {
        path: pytest.approx(value, rel=1e-3, abs=1e-3) if isinstance(value, float) else value
        for path, value in tree_flatten(RECORDED)
    }
