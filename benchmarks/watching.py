"""Cost of a recording: `python benchmarks/watching.py`.

Decodes with and without a recording in turns, on a random model of Falcon-H1's type with its depth
and number of heads, all else tiny, and on one of RecurrentGemma's type with its width, two
recurrent layers deep. Then appends 100,000 tokens of 12 layers with 624 complex channels, 32 at a
time as a recorder does. Last, all single tokens are left out of 200 of the demo model.
"""

import argparse
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx_gateloop as gl  # before MLX, for its BLAS

# isort: split
import mlx.core as mx
import numpy as np

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.watch.layer import Columns, Layer
from mlx_gateloop.watch.trace import Trace

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from helpers.recurrent import recurrent_model

TURNS, DECODED, WARMUP = 9, 104, 8
FALCON = {"num_hidden_layers": 36, "mamba_n_heads": 24, "mamba_d_ssm": 192}
GEMMA = {"hidden_size": 2560, "attention_window_size": 2048}
TOKENS, LAYERS, CHANNELS, AT_ONCE = 100_000, 12, 624, 32
LEFT_OUT = 200


def decoding(model: Any, recording: Any) -> float:
    """Return the mean milliseconds of a token: a recording computes decays of 32 at once."""
    cache, times = model.make_cache(), []
    with recording:
        for _ in range(DECODED):
            began = time.perf_counter()
            mx.eval(model(mx.array([[1]]), cache))
            times.append(time.perf_counter() - began)
    return statistics.mean(times[WARMUP:]) * 1e3


def decode(name: str, sizes: dict[str, int]) -> None:
    model = recurrent_model(name, **sizes)
    turns = [
        (decoding(model, nullcontext()), decoding(model, gl.watch.recording(model)))
        for _ in range(TURNS)
    ]
    plain, watched = (statistics.median(times) for times in zip(*turns, strict=True))
    more = statistics.median(b - a for a, b in turns)
    both = f"{plain:.1f} ms, recorded {watched:.1f} ms"
    print(f"{name}, a token: {both}; {more:+.1f} ms in the median turn")


def append() -> None:
    rng = np.random.default_rng(0)
    rate = rng.exponential(size=(AT_ONCE, CHANNELS)).astype(np.float32)
    phase, read = rng.normal(size=(2, AT_ONCE, CHANNELS)).astype(np.float32)
    reads = dict.fromkeys(("query", "key"), read[:, :, None])
    names = (f"layers.{layer}" for layer in range(LAYERS))
    trace = Trace([Layer(name, "gate loop") for name in names], 256 << 20, window=256)
    began = time.process_time()
    for _ in range(TOKENS // AT_ONCE):
        trace.append([Columns(rate, phase, reads)] * LAYERS)
    each = (time.process_time() - began) / trace.tokens
    print(f"{trace.tokens:,} tokens in {trace.nbytes / 2**20:.0f} MiB")
    print(f"a token appended: {each * 1e6:.0f} µs of the processor")


def leave_out() -> None:
    model, _ = gl.load(str(Path(__file__).parents[1] / "app" / "embedded_models" / "demo"))
    tokens = np.random.default_rng(0).integers(0, 4096, LEFT_OUT)
    for name, since in (("all predictions", 0), ("the last one", LEFT_OUT - 2)):
        times, used = [], []
        for _ in range(TURNS):
            began, before = time.perf_counter(), time.process_time()
            gl.watch.depends(model, tokens, since=since)
            times.append(time.perf_counter() - began)
            used.append(time.process_time() - before)
        wall, processor = statistics.median(times), statistics.median(used)
        print(
            f"depends of {name}, {LEFT_OUT} tokens: {wall:.2f} s, at best {min(times):.2f}; "
            f"{processor:.2f} s of the processor"
        )


if __name__ == "__main__":
    Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    decode("falcon_h1", FALCON)
    decode("recurrent_gemma", GEMMA)
    append()
    leave_out()
