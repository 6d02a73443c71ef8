"""Time this GPU's kernels: `python benchmarks/gpu.py [REPORT.md]`."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

import mlx_gateloop as gl
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.tables import markdown_table
from mlx_gateloop.ops.backends import BACKENDS
from mlx_gateloop.ops.gpu.kernels import INTERVAL

Shape = tuple[int, int, int]
CASES: list[tuple[Shape, mx.Dtype, bool]] = [
    ((8, 4096, 1024), mx.float32, True),
    ((8, 4096, 1024), mx.float32, False),
    ((8, 4096, 1024), mx.bfloat16, True),
    ((1, 4096, 1024), mx.float32, True),
    ((8, 8192, 64), mx.float32, True),
    ((1, 65536, 64), mx.float32, True),
]
TURNS, ROW = 7, 20  # measurements, and calls in a row
NOTE = f"""A share is that of this bandwidth in {ROW} calls in a row. Bytes are the fewest that a
pass can move: each input and output once, and a state every {INTERVAL} steps. A gradient includes
the forward pass."""


def operator(*arrays: mx.array) -> list[mx.array]:
    q, k, v, *gates = arrays
    return [gl.gate_loop(q, k, v, gl.Transition.sigmoid(*gates))[0]]


def seconds(function: Callable[[], object]) -> tuple[float, float, float]:
    """Return the seconds of the first call, of a later one alone, and of one of many in a row."""

    def timed(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            mx.async_eval(function())
        mx.synchronize()
        return (time.perf_counter() - begin) / calls

    def median(calls: int) -> float:
        return statistics.median(timed(calls) for _ in range(TURNS))

    return timed(1), median(1), median(ROW)


def row(copied: float, shape: Shape, dtype: mx.Dtype, is_complex: bool) -> list[str]:
    """Time both passes; `copied`: bytes that a copy reads and writes in a second."""
    arrays = [mx.random.normal(shape).astype(dtype) for _ in range(4 + is_complex)]
    dy = mx.random.normal(shape).astype(dtype)
    mx.eval(arrays, dy)
    states = 4 * (1 + is_complex) / INTERVAL  # bytes of an element
    forward = (len(arrays) + 1) * dtype.size + states
    both = forward + (2 * len(arrays) + 1) * dtype.size + states
    cells = [str(shape), str(dtype).removeprefix("mlx.core."), "complex" if is_complex else "real"]
    passes: list[tuple[Callable[[], object], float]] = [
        (lambda: operator(*arrays), forward),
        (lambda: mx.vjp(operator, arrays, [dy])[1], both),
    ]
    for run, moved in passes:
        first, alone, in_row = seconds(run)
        share = moved * dy.size / in_row / copied
        cells += [f"{first:.1f}", f"{1e3 * alone:.3f}", f"{1e3 * in_row:.3f}", f"{share:.2f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, nargs="?", help="Markdown file to write")
    file = parser.parse_args().report
    missing = [why for name in ("metal", "cuda") if (why := BACKENDS[name].why_missing())]
    if len(missing) > 1:
        raise SystemExit(f"error: no GPU to time: {'; '.join(missing)}")
    large = mx.random.normal((1 << 26,))
    copied = 2 * large.nbytes / seconds(lambda: large + 1)[2]
    head = ["shape", "type", "gates"]
    for name in ("forward", "gradient"):
        head += [f"{name}, first s", "alone ms", "in a row ms", "share"]
    command = " ".join(["python benchmarks/gpu.py", *sys.argv[1:]])
    report = [
        "# Kernels of a GPU",
        markdown_table(["", ""], list(facts(command).items())),
        f"A copy moves {copied / 1e9:,.0f} GB/s. {NOTE}",
        markdown_table(head, [row(copied, *case) for case in CASES]),
    ]
    text = "\n\n".join(report) + "\n"
    print(text, end="")
    if file:
        write_text(file, text)


if __name__ == "__main__":
    main()
