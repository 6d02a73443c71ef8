"""benchmarks/gpu.py, on whatever MLX runs on."""

import mlx.core as mx
from helpers.scripts import load_script


def test_each_row_has_its_times_and_shares():
    script = load_script("benchmarks/gpu.py")
    for dtype, is_complex in ((mx.float32, True), (mx.bfloat16, False)):
        shape, name, gates, *cells = script.row(1e9, (1, 40, 8), dtype, is_complex)
        assert (shape, name) == ("(1, 40, 8)", str(dtype).removeprefix("mlx.core."))
        assert gates == ("complex" if is_complex else "real")
        assert all(float(cell) >= 0 for cell in cells)
        assert len(cells) == 8
