import re

from helpers.training import tiny_run

from mlx_gateloop.train import estimate
from mlx_gateloop.train.dry_run import MIN_STEPS


def test_an_estimate_is_of_the_run_itself(text_file, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    lines = estimate(tiny_run(epochs=4, steps=None, optimizer__accumulate=2), str(text_file))
    shown = dict(re.split(r"  +", line) for line in lines.splitlines())
    parameters, steps, size, tokens, _, timed = (
        float(n.replace(",", ""))
        for name in ("parameters", "steps", "tokens", "speed")
        for n in re.findall(r"[\d,]+(?= \(| of| tokens| steps)", shown[name])
    )
    assert (size, timed, tokens) == (2 * 4 * 32, MIN_STEPS, steps * size)
    assert steps > 10
    assert "(4.00 epochs)" in shown["tokens"]
    weights = 4 * parameters / 2**30  # with its gradient and two moments four times that
    assert 4 * weights - 0.01 < float(shown["peak memory"].split()[0]) < 1
    assert shown["time"].startswith("0:0")


def test_padding_is_no_token(tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    (tmp_path / "a.jsonl").write_text('{"text": "four"}\n' * 40)
    lines = estimate(tiny_run(data__packed=False), str(tmp_path))
    assert "12 of 16 tokens" in lines  # four rows of four, where 32 fit
