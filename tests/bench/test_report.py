import sys

import mlx.core as mx
import pytest
from helpers.experiments import cells

from benchmarks import peers
from mlx_gateloop.bench import measure, ops
from mlx_gateloop.bench.measure import Candidate, mlx_candidate, peak_bytes
from mlx_gateloop.cli import main


def test_the_table_has_ratios_beside_times(monkeypatch):
    seconds = {"a, f": 0.002, "b, f": 0.004, "a, g": 0.006, "b, g": 0.003}
    monkeypatch.setattr(ops, "median_times", lambda runs: {n: seconds[runs[n]()] for n in runs})
    candidates = {
        name: Candidate(lambda n=name: f"{n}, f", lambda n=name: f"{n}, g", is_mlx=False)
        for name in "ab"
    }
    assert cells(ops.table(candidates))[2:] == [
        ["a", "2 (1.00)", "-", "6 (1.00)", "-"],
        ["b", "4 (2.00)", "-", "3 (0.50)", "-"],
    ]


def test_peak_counts_what_a_run_allocates():
    x = mx.zeros((256, 1024))
    mx.eval(x)
    candidate = mlx_candidate(lambda x: [x + 1], [x], [x])
    assert x.nbytes <= peak_bytes(candidate.forward) < 1.1 * x.nbytes
    assert measure.total_bytes([x, None, {"y": (x,)}]) == 2 * x.nbytes


@pytest.mark.parametrize(("what", "rows"), [
    ("ops", ["ours, mlx", "mlx-lm's ssm_attn"]), ("train", ["GateLoop (ours)"]),
    ("model", ["GateLoop (ours)", "mamba2", "recurrent_gemma"]),
])  # fmt: skip
def test_a_quick_report(what, rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "TURNS", 1)
    out = tmp_path / "new" / "results"
    assert main(["bench", what, "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (out / f"{what}.md").read_text() == printed[:-1]
    for text in (*rows, f"gateloop bench {what} --quick", "mlx 0.", "BLAS"):
        assert text in printed


@pytest.mark.parametrize("what", ["model", "train"])
def test_peers_add_rows(what, capsys, monkeypatch, tmp_path):
    pytest.importorskip("gateloop_transformer")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "TURNS", 1)
    monkeypatch.setattr(sys, "argv", ["peers", what, "--quick"])
    peers.main()
    printed = capsys.readouterr().out
    for text in ("\n| GateLoop (ours) ", "\n| gateloop-transformer (torch) ", "benchmarks.peers"):
        assert text in printed
    assert list(tmp_path.iterdir()) == []
