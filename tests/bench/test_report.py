"""The reports: tables, verdicts, files, and what is said of peers that are not here."""

import re

import mlx.core as mx
import numpy as np
import pytest

from mlx_gateloop.bench import machine, write_report
from mlx_gateloop.bench.compare import compare
from mlx_gateloop.bench.measure import (
    Contender,
    median_times,
    mlx_contender,
    peak_bytes,
    three_digits,
    total_bytes,
)
from mlx_gateloop.bench.report import Report, Target
from mlx_gateloop.bench.zoo import mlx_models, num_parameters
from mlx_gateloop.cli import main
from mlx_gateloop.io.tables import markdown_table


def test_table_is_aligned():
    assert markdown_table(["", "ms"], [["ours", "1"], ["jax", "12.5"]]).splitlines() == [
        "|      | ms   |",
        "| ---  | ---  |",
        "| ours | 1    |",
        "| jax  | 12.5 |",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (2, "2"), (999.4, "999"), (12345.6, "12,346")]
)
def test_three_digits(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("measured", "limit", "at_least", "verdict"),
    [
        (8.0, 8, True, "met"),
        (7.99, 8, True, "**not met**"),
        (1.5, 1.5, False, "met"),
        (1.51, 1.5, False, "**not met**"),
        (None, 8, True, "not measured: a contender is missing"),
    ],
)
def test_verdicts(measured, limit, at_least, verdict):
    target = Target("x", measured, limit, at_least)
    assert target.row(quick=False)[-1] == verdict
    if measured:
        assert target.row(quick=True)[-1] == "not judged: --quick"


def test_medians_of_turns():
    calls = []
    times = median_times({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert times.keys() == {"a", "b"}
    assert calls[:6] == ["a", "a", "b", "b", "a", "a"]


def test_compare_puts_ratios_beside_times(monkeypatch):
    seconds = {"f": 0.002, "F": 0.004, "g": 0.006}
    names = {"a": "f", "b": "F"}

    def times(runs):
        return {name: seconds["g" if run() == "g" else names[name]] for name, run in runs.items()}

    monkeypatch.setattr("mlx_gateloop.bench.compare.median_times", times)
    contenders = {
        "a": Contender(lambda: "f", lambda: "g", is_mlx=False),
        "b": Contender(lambda: "f", is_mlx=False),
    }
    result = compare(contenders, moved=8_000_000)
    cells = [re.split(r"\s*\|\s*", line)[1:-1] for line in result.table.splitlines()]
    assert cells[2] == ["a", "2 (1.00)", "4.00", "-", "6 (1.00)", "3.00", "-"]
    assert cells[3] == ["b", "4 (2.00)", "2.00", "-", "-", "-", "-"]
    assert result.over_ours("b") == 2
    assert result.over_ours("c") is None
    assert result.shares == {}

    result = compare(contenders, 8_000_000, 12_000_000, copy="b")
    cells = [re.split(r"\s*\|\s*", line)[1:-1] for line in result.table.splitlines()]
    assert cells[2][2:6] == ["4.00 (200%)", "-", "6 (1.00)", "2.00 (100%)"]
    assert cells[3][2:] == ["2.00 (100%)", *["-"] * 5]
    assert result.shares == {"forward": pytest.approx(2), "gradient": pytest.approx(1)}


def test_peak_counts_what_a_run_allocates():
    x = mx.zeros((256, 1024))
    mx.eval(x)
    contender = mlx_contender(lambda x: [x + 1], [x], [x])
    assert x.nbytes <= peak_bytes(contender.forward) < 1.1 * x.nbytes
    assert total_bytes([x, None, {"y": (x,)}]) == 2 * x.nbytes


def test_models_are_of_one_size():
    counts = {name: num_parameters(model) for name, model in mlx_models().items()}
    assert len(counts) == 4
    assert all(abs(count - 2e6) < 0.06e6 for count in counts.values()), counts


@pytest.fixture
def no_peers(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("what", "contenders", "plots"),
    [
        (
            "ops",
            ["ours, ops", "Blelloch", "Hillis-Steele", "naive loop", "memory copy", "gelu"],
            ["batch", "length", "operator", "scan"],
        ),
        ("model", ["GateLoop (ours)", "mamba2", "recurrent_gemma"], ["speed"]),
        ("train", ["GateLoop (ours)", "the operator", "cross-entropy"], ["speed"]),
    ],
)
def test_a_quick_report(what, contenders, plots, tmp_path, capsys, no_peers):
    out = tmp_path / "new" / "results"
    assert main(["bench", what, "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (out / f"{what}.md").read_text() == printed[:-1]
    for text in (*contenders, f"gateloop bench {what} --quick", "mlx 0.", "BLAS", "## Targets"):
        assert text in printed
    assert "- no torch: not installed (pip install -r requirements-bench.txt)" in printed
    assert sorted(path.name for path in out.glob("*.png")) == [f"{what}-{p}.png" for p in plots]
    for plot in plots:
        assert f"]({what}-{plot}.png)" in printed


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report = Report("ops", None)
    report.plot("x", "title", lambda path, title: pytest.fail("drawn"))
    report.target("a", 2.0, 1)
    report.end()
    assert list(tmp_path.iterdir()) == []
    assert "| a      | at least 1 | 2.00     | met |" in capsys.readouterr().out


def test_the_cache_limit_is_put_back(monkeypatch):
    before = mx.set_cache_limit(12345678)
    try:
        monkeypatch.setattr("mlx_gateloop.bench.train.measure", lambda report: None)
        write_report("train", quick=True)
        assert mx.set_cache_limit(before) == 12345678
    finally:
        mx.set_cache_limit(before)


def test_copy_moves_as_many_bytes_as_it_says():
    from mlx_gateloop.bench.floors import memory_copy

    run = memory_copy(1000)
    target = run.__closure__[1].cell_contents
    run()
    assert target.nbytes == 500
    assert np.all(target == 1)


def test_a_copy_on_the_device_moves_as_many_bytes_as_it_says(monkeypatch):
    from mlx_gateloop.bench import floors

    assert not floors.device_copy(1000).is_mlx or mx.default_device().type == mx.gpu
    gpu = type("Device", (), {"type": mx.gpu})
    monkeypatch.setattr(floors.mx, "default_device", lambda: gpu)
    assert floors.device_copy(1000).forward().nbytes == 500
