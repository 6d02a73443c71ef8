"""Matrix products compared with NumPy's, and pointwise functions with mlx.nn's."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_gateloop.bench.compare import compare
from mlx_gateloop.bench.measure import (
    Function,
    Run,
    median_times,
    milliseconds,
    mlx_contender,
    mlx_run,
    ratio,
)
from mlx_gateloop.bench.report import Report
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops import pointwise

# rows, inner size, columns
PRODUCTS = [(size, size, size) for size in (256, 512, 1024, 2048)]
PRODUCTS += [(2048, 256, 768), (1, 256, 768), (1, 1024, 1024)]
FEWEST_FLOPS = 2e8  # in one timed run: small products are repeated, as in a model's graph


def measure_products(report: Report) -> None:
    """Time matrix products in float32 with MLX and with NumPy."""
    rng = np.random.default_rng(0)
    rows = []
    many: list[float] = []
    single: list[float] = []
    for m, k, n in [(1, 64, 64), (64, 64, 64)] if report.quick else PRODUCTS:
        x, w = (rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
        count = max(1, min(1000, round(FEWEST_FLOPS / (2 * m * k * n))))
        times = median_times({"mlx": _mlx_products(x, w, count), "numpy": _products(x, w, count)})
        over = times["mlx"] / times["numpy"]
        (many if m > 1 else single).append(over)
        rates = [f"{2 * m * k * n * count / seconds / 1e9:.3g}" for seconds in times.values()]
        each = [milliseconds(seconds / count) for seconds in times.values()]
        rows.append([f"({m}, {k}) x ({k}, {n})", *each, *rates, f"{over:.2f}"])
    report.add(
        "## Matrix products\n\nfloat32. Small products are repeated until a run counts; the time "
        "is of one."
    )
    overhead = _overhead(1000)
    report.add(
        f"Any operation, even abs of one number, costs MLX {overhead['mlx'] * 1e6:.1f} µs and "
        f"NumPy {overhead['numpy'] * 1e6:.1f} µs: that is what products of one row add."
    )
    header = ["", "MLX ms", "NumPy ms", "MLX GFLOP/s", "NumPy GFLOP/s", "MLX over NumPy"]
    report.add(markdown_table(header, rows))
    what = "matrix products, MLX's time over NumPy's, worst of the shapes"
    report.target(f"{what} of many rows", max(many), 1.15, at_least=False)
    report.target(f"{what} of one row", max(single), 1.15, at_least=False)


def _mlx_products(x: np.ndarray, w: np.ndarray, count: int) -> Run:
    left, right = mx.array(x), mx.array(w)
    return mlx_run(lambda: [left @ right for _ in range(count)])


def _products(x: np.ndarray, w: np.ndarray, count: int) -> Run:
    return lambda: [x @ w for _ in range(count)]


def _overhead(count: int) -> dict[str, float]:
    """The seconds of a minimal operation."""
    one = np.ones(1, np.float32)
    other = mx.array(one)
    ours = mlx_run(lambda: [mx.abs(other) for _ in range(count)])
    times = median_times({"mlx": ours, "numpy": lambda: [np.abs(one) for _ in range(count)]})
    return {name: seconds / count for name, seconds in times.items()}


def measure_pointwise(report: Report) -> None:
    """Time the functions of a block and of the loss, forward and gradient."""
    rng = np.random.default_rng(0)
    shape = (64, 256) if report.quick else (2048, 768)
    x, dy = (mx.array(rng.normal(size=shape).astype(np.float32)) for _ in range(2))
    targets = mx.array(rng.integers(0, shape[1], shape[0]))
    weight, bias = mx.ones(shape[1]), mx.zeros(shape[1])
    mx.eval(x, dy, targets)
    functions: dict[str, tuple[Function, Function]] = {
        "gelu": (pointwise.gelu, nn.gelu),
        "silu": (pointwise.silu, nn.silu),
        "sigmoid": (pointwise.sigmoid, nn.sigmoid),
        "layer norm": (
            lambda x: pointwise.layer_norm(x, weight, bias, 1e-5),
            lambda x: mx.fast.layer_norm(x, weight, bias, 1e-5),
        ),
        "cross-entropy, one a row": (
            lambda x: pointwise.cross_entropy(x, targets),
            lambda x: nn.losses.cross_entropy(x, targets),
        ),
    }
    rows = []
    for name, pair in functions.items():
        cotangent = dy[:, 0] if "a row" in name else dy
        ours, theirs = (mlx_contender(_listed(f), [x], [cotangent]) for f in pair)
        result = compare({"ours": ours, "mlx.nn": theirs})
        row = [name]
        for times in (result.forward, result.gradient):
            row.append(milliseconds(times["ours"]))
            row.append(f"{milliseconds(times['mlx.nn'])} ({ratio(times['mlx.nn'], times['ours'])})")
        rows.append(row)
    report.add(f"## Pointwise functions at {shape}, float32\n\nMLX's beside ours.")
    header = ["", "forward ms", "MLX's ms", "gradient ms", "MLX's ms"]
    report.add(markdown_table(header, rows))


def _listed(function: Function) -> Function:
    return lambda x: [function(x)]
