"""benchmarks/gpu.py, on whatever MLX runs on."""

import mlx.core as mx
import pytest
from helpers.scripts import load_script

script = load_script("benchmarks/gpu.py")


@pytest.mark.parametrize(("dtype", "is_complex", "forward", "both"), [
    # numbers of inputs, outputs and saved states: 6 and 1/16, then 11 and 1/16 more
    (mx.float32, True, 4 * (6 + 1 / 16), 4 * (17 + 1 / 8)),
    (mx.bfloat16, False, 2 * 5 + 4 / 32, 2 * 14 + 8 / 32),
])  # fmt: skip
def test_a_share_is_bytes_over_time_over_bandwidth(dtype, is_complex, forward, both, monkeypatch):
    ran = []

    def seconds(function):
        mx.eval(function())
        ran.append(function)
        return 9.0, 0.002, 1e-6 * 320

    monkeypatch.setattr(script, "seconds", seconds)
    row = script.row(1e9, (1, 40, 8), dtype, is_complex)
    shares = [f"{count / 1000:.2f}" for count in (forward, both)]
    assert row[3:] == [cell for s in shares for cell in ("9.0", "2.000", "0.320", s)]
    assert len(ran) == 2


def test_without_a_gpu_it_is_one_line(monkeypatch):
    for name in ("metal", "cuda"):
        entry = script.BACKENDS[name]._replace(why_missing=lambda: "none here")
        monkeypatch.setitem(script.BACKENDS, name, entry)
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    with pytest.raises(SystemExit, match=r"^error: no GPU to time: none here; none here$"):
        script.main()
