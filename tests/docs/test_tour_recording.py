"""The recording of the app's tour holds what the embedded models compute."""

import json

import numpy as np
import pytest
from helpers.scripts import ROOT, load_script

RECORDED = json.loads((ROOT / "app/page/static/tour.json").read_text("utf-8"))
FORGETS = 0.25  # share of the usually remembering channels: a reset


def compare(value, other, path):
    """Compare texts and whole numbers exactly, other numbers to a thousandth."""
    assert type(value) is type(other), path
    if isinstance(value, list | dict):
        keys = value if isinstance(value, dict) else range(len(value))
        assert list(value) == list(other) if keys is value else len(value) == len(other), path
        for key in keys:
            compare(value[key], other[key], f"{path}.{key}")
    else:
        is_close = isinstance(value, float)
        assert value == (pytest.approx(other, rel=1e-3, abs=1e-3) if is_close else other), path


def test_resets_are_where_a_quarter_forgets():
    forgets = np.array(RECORDED["forgets"])
    assert RECORDED["resets"] == np.flatnonzero(forgets >= FORGETS).tolist()
    assert 0 < len(RECORDED["resets"]) < len(forgets)


@pytest.mark.slow
def test_the_command_makes_what_is_recorded():
    again = load_script("docs/tour_recording.py").record()
    compare(RECORDED, json.loads(json.dumps(again)), "recording")
