"""Read a long text into a state: speed and memory by tenths, and the state against single steps.

python benchmarks/reading.py TEXT --model demo --tokens 1000000

"steps" is the largest relative difference between a state after PROBE further tokens in one pass
and the same tokens one by one in the operator's recurrent form, from the state at that position.
Speeds are by the process's time, as other work may share the cores; by the clock beside them.
"""

import argparse
import copy
import time
from itertools import islice
from pathlib import Path

import mlx_gateloop as gl  # before MLX, for its BLAS

# isort: split
import mlx.core as mx
import psutil

from mlx_gateloop.commands.read import TOKENS, read_tokens
from mlx_gateloop.io.tables import markdown_table

PROBE = 64


def difference(model: gl.Model, state: gl.State, ids: list[int]) -> float:
    """Read tokens at once and one by one from the same state, which stays as it is."""
    at_once, by_steps = copy.deepcopy(state), copy.deepcopy(state)
    at_once.read(model, ids)
    for token in ids:
        by_steps.read(model, [token])
    pairs = zip(at_once.cache, by_steps.cache, strict=True)
    differences = [mx.abs(a[0] - b[0]).max() / mx.abs(b[0]).max() for a, b in pairs]
    return float(mx.stack(differences).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="demo", help="a model, or `random` for one of 124M")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    arguments = parser.parse_args()
    model, tokenizer = gl.load("demo" if arguments.model == "random" else arguments.model)
    if arguments.model == "random":
        mx.random.seed(0)
        model = gl.Model(gl.ModelArgs(output_gate=True))
        model.eval()
    blocks = read_tokens([arguments.text], tokenizer, 0)
    ids = list(islice((token for block, *_ in blocks for token in block), arguments.tokens))
    if len(ids) < 11 * TOKENS:
        parser.error(f"expected {11 * TOKENS:,} tokens or more to read, got {len(ids):,}")
    state, rows = gl.State(model.make_cache()), []
    state.read(model, ids[:TOKENS])  # the first pass allocates
    tenth = (len(ids) - TOKENS) // 10 // TOKENS * TOKENS
    for part in range(10):
        start, clock = time.process_time(), time.perf_counter()
        first = TOKENS + part * tenth
        for at in range(first, first + tenth, TOKENS):
            state.read(model, ids[at : at + TOKENS])
        used, clock = time.process_time() - start, time.perf_counter() - clock
        memory = psutil.Process().memory_info().rss / 1e6
        steps = difference(model, state, ids[:PROBE])
        row = [f"{state.tokens:,}", f"{tenth / used:,.0f}", f"{tenth / clock:,.0f}"]
        rows.append([*row, f"{memory:,.0f}", f"{steps:.1e}"])
        print(*rows[-1], flush=True)
    header = ["tokens read", "tokens/s of processor time", "by the clock", "memory, MB", "steps"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
