"""Compare two installed versions at the work of `gateloop bench model` and `bench train`.

python benchmarks/compare_versions.py ../before/.venv/bin/python .venv/bin/python

Each argument is the Python of an environment with one version. Both stay loaded and take turns, so
that a slow moment of the machine affects both. Prints medians, and the median ratio of the turns.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path

from mlx_gateloop.tables import markdown_table

NAMES = ("prefill", "decode", "training step")
# Reads a name per line and answers with the seconds of that work, after running it once untimed.
WORKER = """
import sys, time
from functools import partial
import mlx.core as mx
import numpy as np
from mlx_gateloop.bench import model, train, zoo
from mlx_gateloop.bench.measure import CACHE_BYTES, mlx_run
from mlx_gateloop.lm import Model, ModelArgs

mx.set_cache_limit(CACHE_BYTES)
tokens = np.random.default_rng(0).integers(0, zoo.VOCABULARY, (4, 1024))
prompt = mx.array(tokens[:1])
ours = zoo.mlx_models()["GateLoop (ours)"]
sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 768}
step = train._our_step(Model(ModelArgs(vocab_size=zoo.VOCABULARY, output_gate=True, **sizes)))
work = {
    "prefill": mlx_run(model._prefill, ours, prompt),
    "decode": partial(model._decode, ours, prompt[:, :16], 128),
    "training step": lambda: step([(tokens[:, :512], tokens[:, 1:513])]),
}
for line in sys.stdin:
    run = work[line.strip()]
    run()
    began = time.perf_counter()
    run()
    print(time.perf_counter() - began, flush=True)
"""


class Version:
    """A process of one version that measures on request."""

    def __init__(self, python: str) -> None:
        # From an empty folder, so that the installed package is imported.
        self._process = subprocess.Popen(
            [Path(python).absolute(), "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tempfile.gettempdir(),
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
    parser.add_argument("--turns", type=int, default=15, help="of each work (default: 15)")
    arguments = parser.parse_args()
    versions = [Version(python) for python in (arguments.before, arguments.after)]
    rows = []
    for name in NAMES:
        turns = [[version.seconds(name) for version in versions] for _ in range(arguments.turns)]
        before, after = (statistics.median(times) * 1e3 for times in zip(*turns, strict=True))
        ratio = statistics.median(new / old for old, new in turns)
        rows.append([name, f"{before:.1f}", f"{after:.1f}", f"{ratio:.3f}"])
    print(markdown_table(["", "before, ms", "after, ms", "after / before"], rows))


if __name__ == "__main__":
    main()
