import json
from unittest import mock

import numpy as np
import pytest
from helpers.traces import trace_with
from matplotlib.axes import Axes

from mlx_gateloop.plots import figures
from mlx_gateloop.plots.figures import training_curves
from mlx_gateloop.plots.style import Line

ONE, OTHER = Line("one", 0), Line("other", 11)
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


@pytest.mark.parametrize("count", [0, 1])
def test_a_picture_for_every_length_of_log(tmp_path, count):
    assert draw(tmp_path, RECORDS[:count]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl", "curves.png"}


def test_what_is_drawn(tmp_path, plotted):
    draw(tmp_path, RECORDS)
    assert {label: line.T.tolist() for label, (line,) in plotted.items()} == {
        "training": [[1, 5.5], [3, 4.5]],
        "validation": [[2, 5.25]],
        "learning rate": [[1, 0.01], [2, 0.02], [3, 0.01]],
    }


def test_accuracy_over_span_is_right_over_asked(tmp_path, plotted):
    asked = np.full(64, 50)
    asked[40:] = 1  # too few to say
    runs = [(asked, np.minimum(asked, np.arange(64))), (asked, asked)]
    figures.accuracy_over_span({ONE: runs}, "inputs", tmp_path / "a.png")
    ((spans, accuracy),) = plotted["one"]
    assert spans.tolist()[:8] == [*range(8)]
    assert spans.tolist()[-3:] == [29.5, 34, 39]  # bins of four and five spans
    np.testing.assert_allclose(accuracy[:-1], (1 + spans[:-1] / 50) / 2)
    # The last bin has three spans of 50 answers and two of one: 37, 38, 39 and 1, 1 are right.
    np.testing.assert_allclose(accuracy[-1], (1 + (37 + 38 + 39 + 1 + 1) / (3 * 50 + 2)) / 2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_learning_is_the_mean_over_the_steps_that_all_runs_have(tmp_path, plotted):
    runs = [[(1, 0.25), (2, 0.5)], [(1, 0.35), (2, 0.7), (3, 0.9)]]
    figures.learning({ONE: runs, OTHER: [[(1, 0.3)]]}, "accuracy", tmp_path / "c.png")
    ((one,), (other,)) = plotted["one"], plotted["other"]
    np.testing.assert_allclose(one, [[1, 2], [0.3, 0.6]])
    assert other.tolist() == [[1], [0.3]]
    assert [path.name for path in tmp_path.iterdir()] == ["c.png"]


def watched(name):
    """A block's calls of a method of matplotlib's axes, which draws all the same."""
    return mock.patch.object(Axes, name, autospec=True, side_effect=getattr(Axes, name))


def test_ranges_of_a_few_models_only(tmp_path):
    for count, ranges in ((1, 1), (figures.MAX_RANGES, 4), (figures.MAX_RANGES + 1, 0)):
        lines = {Line(f"{n}", n): [[(1, 0.25)], [(1, 0.5)]] for n in range(count)}
        with watched("fill_between") as fill:
            figures.learning(lines, "accuracy", tmp_path / "a.png")
        filled = [call.args[1:] for call in fill.call_args_list]
        colours = [call.kwargs["color"] for call in fill.call_args_list]
        assert colours == [f"C{n}" for n in range(ranges)]
        np.testing.assert_array_equal(filled, [[[1], [0.25], [0.5]]] * ranges)


def test_transitions_are_averaged_over_channels(tmp_path, plotted):
    columns = np.zeros((4, 2, 5, 3), np.float32)
    magnitude = np.random.default_rng(0).random((2, 5, 3))
    columns[0] = -np.log(magnitude)
    columns[1, 1] = [-np.pi + 0.1, np.pi, np.pi - 0.1]  # on both sides of the cut
    figures.transitions(trace_with(columns), [2], tmp_path / "t.png")
    (first, _), (second, direction), (whole, _) = map(plotted.get, ("layer 1", "layer 2", "all"))
    np.testing.assert_allclose(first[0], magnitude[0].mean(1), rtol=1e-6)
    np.testing.assert_allclose(second[0], magnitude[1].mean(1), rtol=1e-6)
    np.testing.assert_allclose(whole[0], magnitude.mean((0, 2)), rtol=1e-6)
    np.testing.assert_allclose(np.abs(direction[0]), np.pi, rtol=1e-6)
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
