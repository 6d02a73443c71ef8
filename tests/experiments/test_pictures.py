from dataclasses import asdict

from helpers.records import run_record

from mlx_gateloop.experiments.pictures import draw_records, line
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.variants import VARIANTS


def results(name, models, curves, **others):
    counts = {"asked_by_span": [0, 50, 50], "right_by_span": [0, 50, 20]}
    preset = "paper" if name == "memory-horizon" else "small"
    experiment = asdict(PRESETS[name][preset])
    runs = [run_record(model, 0, **counts) for model in models]
    return {"experiment": experiment, "runs": runs, "curves": curves} | others


def test_every_model_has_a_line_of_its_own():
    lines = [line(model) for model in (*VARIANTS, "of another version")]
    assert len({each.name for each in lines}) == len({each.number for each in lines}) == len(lines)


def test_the_order_of_the_models_is_always_the_same(tmp_path, plotted):
    models = ("of another version", "retnet", "data_controlled")
    curves = {"retnet": [[(10, 0.5)]], "data_controlled": [[(10, 0.75), (20, 1.0)]]}
    drawn = draw_records(tmp_path, results("recall", models, curves))
    assert {path.name for path in tmp_path.iterdir()} == {*drawn}
    assert [name for name in plotted if name] == ["data-controlled", "RetNet", "of another version"]
    spans, learning = (points.tolist() for points in plotted["data-controlled"])
    assert spans == [[1, 2], [1.0, 0.4]]
    assert learning == [[10, 20], [0.75, 1.0]]
    assert len(plotted["of another version"]) == 1  # it has no curve


def test_a_text_over_bytes_and_time(tmp_path, plotted):
    curves = {"lru": [[(2, 3.0), (4, 2.0)]]}
    tree = results("text", ["lru"], curves, tokens_per_step=500_000)  # 0.5 s a step
    assert "bits.png" in draw_records(tmp_path, tree)
    read, time = (points.tolist() for points in plotted["LRU"][-2:])
    assert (read, time) == ([[1, 2], [3, 2]], [[1, 2], [3, 2]])


def test_runs_without_a_common_validation_have_no_line(tmp_path, plotted):
    curves = {"lru": [[]], "s5": [[(2, 0.5)], []]}
    tree = results("text", ["lru", "s5", "retnet"], curves, tokens_per_step=16)
    for run in tree["runs"]:
        run |= {"asked_by_span": [1, 0], "right_by_span": [1, 0]}  # too few to draw
    draw_records(tmp_path, tree)
    assert not {"LRU", "S5", "RetNet"} & plotted.keys()
