import json
from dataclasses import replace

import pytest
from helpers.records import run_record as result

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments import results
from mlx_gateloop.experiments.measure import ACCURACY, BITS
from mlx_gateloop.experiments.presets import PRESETS

SMALL = PRESETS["recall"]["small"]


def test_runs_that_do_not_count_are_named():
    every = {
        "fixed": [result("fixed", 0), result("fixed", 1, finished=False)],
        "lru": [result("lru", 0, finished=False)],
    }
    runs = results.counted(every)
    assert runs == {"fixed": every["fixed"][:1], "lru": every["lru"]}  # there is no other of lru
    experiment = replace(SMALL, models=("fixed", "lru", "s5"), seeds=2)
    assert results.left_out(experiment, every, runs) == [
        "Without a result: lru-1, s5-0, s5-1.",
        "Left out, as they are not finished: fixed-1.",
    ]
    assert results.left_out(replace(SMALL, models=("fixed",), seeds=1), runs, runs) == []


def test_results_are_sorted_by_seed_and_damaged_ones_are_none(tmp_path):
    texts = {f"fixed-{seed}": json.dumps(result("fixed", seed)) for seed in (10, 2)}
    for name, text in (texts | {"lru-0": '{"model": "lr', "s5-0": "[]"}).items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "test.json").write_text(text)
    assert results.read_runs(tmp_path) == {"fixed": [result("fixed", 2), result("fixed", 10)]}


def test_when_and_where_the_runs_were_made():
    def made(day, versions):
        return {"made": {"date": f"2026-11-{day} 02:00 UTC", "CPU": "a CPU", "versions": versions}}

    first, second = made(23, "1.0 (ab12)"), made(21, "1.0 (cd34)")
    runs = {
        "fixed": [result("fixed", 0), result("fixed", 1, **first)],
        "lru": [result("lru", 0, **second), result("lru", 1, **first)],
    }
    assert results.made(runs) == [
        ("runs ended", f"2026-11-21 02:00 UTC to {first['made']['date']}"),
        ("CPU of the runs", "a CPU"),
        ("versions of the runs", "1.0 (ab12); 1.0 (cd34)"),
    ]
    assert results.made({"fixed": [result("fixed", 1, **first)]})[0][1] == first["made"]["date"]
    assert results.made({"fixed": [result("fixed", 0)]}) == []  # as an older version wrote it


def test_a_curve_of_bits(tmp_path):
    records = [{"step": 1, "loss": 5.0}, {"step": 2, "validation_loss": 1.3862943611198906}]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert results.curve(log, BITS) == [(2, 2.0)]
    assert results.curve(log, ACCURACY) == results.curve(tmp_path / "missing.jsonl", BITS) == []


@pytest.mark.parametrize("record", [{"accuracy": 0.5}, {"step": 4, "accuracy": "x"}])
def test_a_damaged_log_is_named(tmp_path, record):
    (log := tmp_path / "log.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match=r"log\.jsonl: accuracy .* at step .*; remove the run"):
        results.curve(log, ACCURACY)
