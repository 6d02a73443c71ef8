import json

import pytest

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.curves import curve, read_curves, speed_of_learning, upto
from mlx_gateloop.experiments.measure import ACCURACY, BITS


def test_the_last_validation_up_to_a_step_counts():
    points = [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert [upto(points, step) for step in (5, 10, 19, 30)] == [None, 0.1, 0.1, 0.3]
    assert upto(points, 31) is None  # the run ended before
    assert upto([], 1) is None


def test_means_over_runs_that_came_so_far(tmp_path):
    def run(model, seed, last):
        log = tmp_path / "runs" / f"{model}-{seed}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        records = [{"step": step, "accuracy": step / 100 + seed} for step in range(1, last + 1)]
        records.append({"step": last, "loss": 1.0})
        log.write_text("".join(json.dumps(record) + "\n" for record in records))
        return {"seed": seed, "total_steps": 32}

    runs = {
        "data_controlled": [run("data_controlled", 0, 32), run("data_controlled", 1, 32)],
        "lru": [run("lru", 0, 8)],
    }
    header, _, one, other = speed_of_learning(
        runs, read_curves(tmp_path, runs, ACCURACY)
    ).splitlines()
    assert [cell.strip() for cell in header.split("|")[2:-1]] == [
        f"{n} steps" for n in (2, 4, 8, 16, 32)
    ]
    assert [cell.strip() for cell in one.split("|")[1:-1]] == [
        *("data-controlled", "0.520", "0.540", "0.580", "0.660", "0.820")
    ]
    assert [cell.strip() for cell in other.split("|")[1:-1]] == [
        "LRU",
        "0.020",
        "0.040",
        "0.080",
        "-",
        "-",
    ]


def test_a_curve_of_bits(tmp_path):
    records = [{"step": 1, "loss": 5.0}, {"step": 2, "validation_loss": 1.3862943611198906}]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert curve(log, BITS) == [(2, 2.0)]
    assert curve(log, ACCURACY) == curve(tmp_path / "missing.jsonl", BITS) == []


@pytest.mark.parametrize("record", [{"accuracy": 0.5}, {"step": 4, "accuracy": "x"}])
def test_a_damaged_log_is_named(tmp_path, record):
    (log := tmp_path / "log.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match=r"log\.jsonl: accuracy .* at step .*; remove the run"):
        curve(log, ACCURACY)
