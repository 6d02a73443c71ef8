from helpers.records import run_record
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlx_gateloop.experiments.measure import ACCURACY, BITS
from mlx_gateloop.experiments.pictures import draw_records, line
from mlx_gateloop.experiments.variants import VARIANTS


def run(model):
    return run_record(model, 0, asked_by_span=[0, 50, 50], right_by_span=[0, 50, 20])


def test_every_model_has_a_line_of_its_own():
    lines = [line(model) for model in (*VARIANTS, "of another version")]
    assert len({each.name for each in lines}) == len({each.number for each in lines}) == len(lines)


def test_the_order_of_the_models_is_always_the_same(tmp_path, monkeypatch):
    plotted, plot = {}, Axes.plot

    def record(axes, x, y, **style):
        if name := style.get("label"):
            plotted.setdefault(name, []).append([list(x), list(y)])
        return plot(axes, x, y, **style)

    monkeypatch.setattr(Axes, "plot", record)
    runs = {model: [run(model)] for model in ("of another version", "retnet", "data_controlled")}
    curves = {"retnet": [[(10, 0.5)]], "data_controlled": [[(10, 0.75), (20, 1.0)]]}
    drawn = draw_records(tmp_path, runs, curves, ACCURACY)
    assert {path.name for path in tmp_path.iterdir()} == drawn.keys()
    assert list(plotted) == ["data-controlled", "RetNet", "of another version"]
    spans, learning = plotted["data-controlled"]
    assert spans == [[1, 2], [1.0, 0.4]]
    assert learning == [[10, 20], [0.75, 1.0]]
    assert len(plotted["of another version"]) == 1  # it has no curve


def test_the_names_of_the_axes(tmp_path, monkeypatch):
    names, add = [], Figure.add_subplot
    monkeypatch.setattr(
        Figure, "add_subplot", lambda self, *a, **of: names.append(of) or add(self, *a, **of)
    )
    draw_records(tmp_path, {"lru": [run("lru")]}, {"lru": [[(1, 2.5)]]}, BITS)
    assert names[:2] == [
        {"xlabel": "number of inputs before", "ylabel": "test accuracy"},
        {"xlabel": "step", "ylabel": "validation bits per byte"},
    ]
