import json

import pytest

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.curves import curve
from mlx_gateloop.experiments.measure import ACCURACY, BITS


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
