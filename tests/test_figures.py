import json

import numpy as np
import pytest

from mlx_gateloop.figures import training_curves

RECORDS = [
    {"step": 1, "loss": 5.5, "learning_rate": 0.01},
    {"step": 2, "loss": None, "learning_rate": 0.02},
    {"step": 2, "validation_loss": 5.25, "best": True},
    {"step": 3, "loss": 4.5, "learning_rate": 0.01},
]


def draw(tmp_path, records):
    log, png = tmp_path / "log.jsonl", tmp_path / "curves.png"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    training_curves(log, png)
    return png


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_picture_for_every_length_of_log(tmp_path, count):
    png = draw(tmp_path, RECORDS[:count])
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "curves.png"}


def test_what_is_drawn(tmp_path, monkeypatch):
    import matplotlib.axes

    lines = {}
    original = matplotlib.axes.Axes.plot

    def plot(axes, x, y, **kwargs):
        lines[kwargs["label"]] = list(zip(x, y, strict=True))
        return original(axes, x, y, **kwargs)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", plot)
    draw(tmp_path, RECORDS)
    assert lines == {
        "training": [(1, 5.5), (3, 4.5)],
        "validation": [(2, 5.25)],
        "learning rate": [(1, 0.01), (2, 0.02), (3, 0.01)],
    }


def test_the_curves_are_visible(tmp_path):
    from matplotlib.image import imread

    empty, full = draw(tmp_path, []), None
    blank = imread(empty)
    full = imread(draw(tmp_path, RECORDS))
    assert full.shape == blank.shape == (540, 960, 4)
    assert np.abs(full - blank).max() > 0.5
