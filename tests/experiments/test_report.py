from helpers.experiments import cells
from helpers.records import run_record

from mlx_gateloop.experiments import report, results
from mlx_gateloop.experiments.measure import ACCURACY
from mlx_gateloop.experiments.variants import VARIANTS
from mlx_gateloop.plots.style import line_style


def result(model, seed, accuracy, **others):
    loss = 2 * 0.6931471805599453  # nats: two bits
    return run_record(model, seed, accuracy=accuracy, loss=loss, **others)


RUNS = {
    "data_controlled": [result("data_controlled", n, x) for n, x in enumerate((0.9, 0.8, 0.7))],
    "fixed": [result("fixed", 0, 0.5), result("fixed", 2, 0.6)],
    "real_gates": [result("real_gates", 1, 0.75, steps=3, finished=False)],
}


def test_accuracies():
    states = {"data_controlled": 2048, "fixed": 64, "real_gates": 64, "softmax": None}
    runs = RUNS | {"softmax": [result("softmax", 0, 0.5)]}
    _, _, controlled, fixed, real, softmax = cells(report._accuracies(runs, ACCURACY, states))
    assert controlled[:6] == ["data-controlled", "1,234", "2,048", "32", "5", "0.800 ± 0.100"]
    assert controlled[6:] == ["2.000 ± 0.000", "0.900, 0.800, 0.700", "2"]
    assert fixed[5] == "0.550 ± 0.071"
    assert real[4:6] == ["3 **of 5**", "0.750"]
    assert (softmax[0], softmax[2]) == ("softmax without positions", "grows")


def test_runs_may_have_other_longest_spans_and_models_none_of_a_span():
    shorter = result("fixed", 0, 0.5, asked_by_span=[4, 0], right_by_span=[2, 0])
    runs = {"data_controlled": RUNS["data_controlled"], "fixed": [shorter]}
    runs["lru"] = [result("lru", 0, 0.5), shorter | {"model": "lru", "seed": 1}]
    names, accuracies = results.accuracy_by_span(runs)
    assert names == ["0", "2", "3"]
    assert accuracies == {
        "data_controlled": ["1.000", "0.500", "0.000"],
        "fixed": ["0.500", "-", "-"],
        "lru": ["0.750", "0.500", "0.000"],
    }


def tree_of(name, models, curves, **others):
    counts = {"asked_by_span": [0, 50, 50], "right_by_span": [0, 50, 20]}
    runs = [run_record(model, 0, **counts) for model in models]
    return {"experiment": {"name": name}, "runs": runs, "curves": curves} | others


def test_every_model_has_a_line_of_its_own():
    lines = report.lines_of(others := ("fixed, steps 9", "fixed, steps 8")).values()
    styles = {tuple(line_style(each.number).values()) for each in lines}
    assert len(styles) == len({each.name for each in lines}) == len({*VARIANTS, *others})


def test_the_order_of_the_models_is_always_the_same(tmp_path, plotted):
    models = ("of another version", "retnet", "data_controlled")
    curves = {"retnet": [[(10, 0.5)]], "data_controlled": [[(10, 0.75), (20, 1.0)]]}
    drawn = report.draw_records(tmp_path, tree_of("recall", models, curves))
    assert {path.name for path in tmp_path.iterdir()} == {*drawn}
    assert [name for name in plotted if name] == ["data-controlled", "RetNet", "of another version"]
    spans, learning = (points.tolist() for points in plotted["data-controlled"])
    assert spans == [[1, 2], [1.0, 0.4]]
    assert learning == [[10, 20], [0.75, 1.0]]
    assert len(plotted["of another version"]) == 1  # it has no curve


def test_a_text_over_bytes_and_time(tmp_path, plotted):
    curves = {"lru": [[(2, 3.0), (4, 2.0)]]}
    tree = tree_of("text", ["lru"], curves, tokens_per_step=1_500_000)  # 0.5 s a step
    assert "bits.png" in report.draw_records(tmp_path, tree)
    read, time = (points.tolist() for points in plotted["LRU"][-2:])
    assert (read, time) == ([[3, 6], [3, 2]], [[1, 2], [3, 2]])


def test_runs_without_a_common_validation_have_no_line(tmp_path, plotted):
    curves = {"lru": [[]], "s5": [[(2, 0.5)], []]}
    tree = tree_of("text", ["lru", "s5", "retnet"], curves, tokens_per_step=16)
    for run in tree["runs"]:  # too few to draw, and they diverged before their first checkpoint
        run |= {"asked_by_span": [1, 0], "right_by_span": [1, 0], "steps": 0, "seconds": 0.0}
    report.draw_records(tmp_path, tree)
    assert not {"LRU", "S5", "RetNet"} & plotted.keys()
