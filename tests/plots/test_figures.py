import json

import numpy as np
import pytest

from mlx_gateloop.plots import figures
from mlx_gateloop.plots.figures import training_curves
from mlx_gateloop.watch.trace import Trace

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


def test_what_is_drawn(tmp_path, plotted):
    draw(tmp_path, RECORDS)
    assert {label: line.T.tolist() for label, (line,) in plotted.items()} == {
        "training": [[1, 5.5], [3, 4.5]],
        "validation": [[2, 5.25]],
        "learning rate": [[1, 0.01], [2, 0.02], [3, 0.01]],
    }


def test_the_curves_are_visible(tmp_path):
    from matplotlib.image import imread

    empty, full = draw(tmp_path, []), None
    blank = imread(empty)
    full = imread(draw(tmp_path, RECORDS))
    assert full.shape == blank.shape == (540, 960, 4)
    assert np.abs(full - blank).max() > 0.5


def test_accuracy_over_span_is_right_over_asked(tmp_path, plotted):
    asked = np.full(64, 50)
    asked[40:] = 1  # too few to say
    right = np.minimum(asked, np.arange(64))
    runs = [(asked, right), (asked, asked)]
    figures.accuracy_over_span({"one": runs}, "inputs", tmp_path / "a.png")
    ((spans, accuracy),) = plotted["one"]
    np.testing.assert_allclose(spans, np.arange(20) * 2 + 0.5)
    np.testing.assert_allclose(accuracy, (1 + spans / 50) / 2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_compared_curves_draw_means_over_the_steps_that_all_runs_have(tmp_path, plotted):
    def log(name, *losses):
        records = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
        records += [{"step": 2, "validation_loss": 2.0, "accuracy": losses[0] / 10}]
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    logs = {"one": [log("a", 2.5, 1.0), log("b", 3.5, 2.0, 0.5)], "other": [log("c", 3.0)]}
    figures.compared_curves(logs, tmp_path / "c.png")
    ((one,), (other,)) = plotted["one"], plotted["other"]  # named once
    assert one.tolist() == [[1, 2], [3.0, 1.5]]
    assert other.tolist() == [[1], [3.0]]
    (first, second) = plotted[None]
    np.testing.assert_allclose([first, second], [[[2], [0.3]], [[2], [0.3]]])


def test_compression_over_bytes_and_over_time(tmp_path, plotted):
    """Time is the mean over runs, between the records that have it."""

    def log(name, speed):
        records = [{"step": step, "loss": 1.0, "seconds": step * speed} for step in (2, 4)]
        bits = ((1, 3), (4, 2))
        records += [{"step": s, "validation_loss": b * np.log(2)} for s, b in bits]
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    figures.compression({"one": [log("a", 1.0), log("b", 2.0)]}, 500_000, tmp_path / "c.png")
    np.testing.assert_allclose(plotted["one"], [[[0.5, 2.0], [3, 2]]])
    np.testing.assert_allclose(plotted[None], [[[1.5, 6.0], [3, 2]]])


def test_accuracies_have_a_row_for_each_model(tmp_path, plotted):
    figures.accuracies({"one": [0.5, 0.7], "other": [0.2]}, tmp_path / "d.png")
    (first, second) = plotted[None]
    np.testing.assert_allclose([first, second], [[[0.6] * 2, [-0.3, 0.3]], [[0.2] * 2, [0.7, 1.3]]])
    assert (tmp_path / "d.png").read_bytes()[:4] == b"\x89PNG"


def test_transitions_are_averaged_over_channels(tmp_path, plotted):
    trace = Trace(layers=2, channels=3)
    columns = np.zeros((4, 2, 5, 3), np.float32)
    magnitude = np.random.default_rng(0).random((2, 5, 3))
    columns[0] = -np.log(magnitude)
    columns[1, 1] = [-np.pi + 0.1, np.pi, np.pi - 0.1]  # on both sides of the cut
    trace.append(columns)
    figures.transitions(trace, [2], tmp_path / "t.png")
    (first, _), (second, direction), (whole, _) = (
        plotted[name] for name in ("layer 1", "layer 2", "all")
    )
    np.testing.assert_allclose(first[0], magnitude[0].mean(1), rtol=1e-6)
    np.testing.assert_allclose(second[0], magnitude[1].mean(1), rtol=1e-6)
    np.testing.assert_allclose(whole[0], magnitude.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(np.abs(direction[0]), np.pi, rtol=1e-6)
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
