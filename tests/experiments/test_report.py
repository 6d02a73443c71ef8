from helpers.records import run_record

from mlx_gateloop.experiments import report
from mlx_gateloop.experiments.measure import ACCURACY


def result(model, seed, accuracy, **others):
    loss = 2 * 0.6931471805599453  # nats: two bits
    return run_record(model, seed, accuracy=accuracy, loss=loss, **others)


RUNS = {
    "data_controlled": [result("data_controlled", n, x) for n, x in enumerate((0.9, 0.8, 0.7))],
    "fixed": [result("fixed", 0, 0.5), result("fixed", 2, 0.6)],
    "real_gates": [result("real_gates", 1, 0.75, steps=3, finished=False)],
}


def cells(table):
    rows = [line.strip("| ").split("|") for line in table.splitlines()]
    return [[cell.strip() for cell in row] for row in [rows[0], *rows[2:]]]


def test_accuracies():
    states = {"data_controlled": 2048, "fixed": 64, "real_gates": 64, "softmax": None}
    runs = RUNS | {"softmax": [result("softmax", 0, 0.5)]}
    _, controlled, fixed, real, softmax = cells(report._accuracies(runs, ACCURACY, states))
    assert controlled[:6] == ["data-controlled", "1,234", "2,048", "32", "5", "0.800 ± 0.100"]
    assert controlled[6:] == ["2.000 ± 0.000", "0.900, 0.800, 0.700", "2"]
    assert fixed[5] == "0.550 ± 0.071"
    assert real[4:6] == ["3 **of 5**", "0.750"]
    assert (softmax[0], softmax[2]) == ("softmax without positions", "grows")


def test_runs_may_have_other_longest_spans_and_models_none_of_a_span():
    shorter = result("fixed", 0, 0.5, asked_by_span=[4, 0], right_by_span=[2, 0])
    runs = {"data_controlled": RUNS["data_controlled"], "fixed": [shorter]}
    runs["lru"] = [result("lru", 0, 0.5), shorter | {"model": "lru", "seed": 1}]
    header, controlled, fixed, lru = cells(report._by_span(runs))
    assert header == ["model", "0", "2", "3"]
    assert controlled[1:] == ["1.000", "0.500", "0.000"]
    assert fixed[1:] == ["0.500", "-", "-"]
    assert lru[1:] == ["0.750", "0.500", "0.000"]
