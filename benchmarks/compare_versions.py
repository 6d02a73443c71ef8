"""Compare two installed versions: prefill, decoding and training steps.

python benchmarks/compare_versions.py ../before/.venv/bin/python .venv/bin/python

Each argument is the Python of an environment with one version. Both stay loaded and take turns, so
that a slow moment of the machine affects both. Prints medians, and the median ratio of the turns.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from mlx_gateloop.commands.parser import positive
from mlx_gateloop.io.tables import markdown_table

NAMES = ("prefill", "decode", "decode, real gates", "training step", "training step, 4 heads")
# Reads a name per line and answers with the seconds of that work: once untimed, then for 50 ms.
# Public names alone, which both versions have.
WORKER = """
import sys, time
import mlx_gateloop as gl  # before MLX, for its BLAS
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

mx.set_cache_limit(4 << 30)
tokens = mx.random.randint(0, 1024, (4, 1024))
sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768}
def make(**options):
    return gl.Model(gl.ModelArgs(vocab_size=1024, output_gate=True, **sizes, **options))
def prefill(**options):
    model = make(**options)
    return lambda: mx.eval(model(tokens[:1]))
def decode(**options):
    model = make(**options)
    def run():
        cache = model.make_cache()
        logits = model(tokens[:1, :16], cache)
        for _ in range(128):
            logits = model(mx.argmax(logits[:, -1:], -1), cache)
            mx.eval(logits)
    return run
def training(**options):
    model, optimizer = make(**options), optim.AdamW(1e-4)
    inputs, targets = tokens[:, :512], tokens[:, 1:513]
    def loss():
        return nn.losses.cross_entropy(model(inputs), targets).mean()
    compute = nn.value_and_grad(model, loss)
    def step():
        loss, gradients = compute()
        optimizer.update(model, gradients)
        mx.eval(loss, model.state, optimizer.state)
    return step
work = {
    "prefill": prefill(),
    "decode": decode(),
    "decode, real gates": decode(gate="real"),
    "training step": training(),
    "training step, 4 heads": training(num_heads=4),
}
for line in sys.stdin:
    run = work[line.strip()]
    time.sleep(0.1)  # until the other process's threads of OpenBLAS no longer spin
    run()
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + 0.05:  # a short one alone would time threads that wake up
        run()
        count += 1
    print((time.perf_counter() - began) / count, flush=True)
"""


class Version:
    """A process of one version that measures on request."""

    def __init__(self, python: str) -> None:
        # From an empty folder, so that the installed packages are imported.
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [Path(python).absolute(), "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder.name,
        )

    def seconds(self, name: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", help="a Python with the one version installed")
    parser.add_argument("after", help="a Python with the other")
    parser.add_argument("--turns", type=positive, default=15, help="of each work (default: 15)")
    parser.add_argument("--only", default="", help="works with this text in their names")
    arguments = parser.parse_args()
    versions = [Version(python) for python in (arguments.before, arguments.after)]
    rows = []
    for name in (name for name in NAMES if arguments.only in name):
        turns = [[version.seconds(name) for version in versions] for _ in range(arguments.turns)]
        before, after = (statistics.median(times) * 1e3 for times in zip(*turns, strict=True))
        ratio = statistics.median(new / old for old, new in turns)
        rows.append([name, f"{before:.1f}", f"{after:.1f}", f"{ratio:.3f}"])
    print(markdown_table(["", "before, ms", "after, ms", "after / before"], rows))


if __name__ == "__main__":
    main()
