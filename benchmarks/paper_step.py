"""Time a training step at the paper's settings of Memory Horizon, where only its cost changes.

python benchmarks/paper_step.py

Each way has a process of its own. All stay loaded and take turns, so that a slow moment of the
machine affects all. Prints medians, and the median ratio of the turns to the first way's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

from mlx_gateloop.tables import markdown_table

ONE, TWO = ({"OPENBLAS_NUM_THREADS": f"{count}"} for count in (1, 2))
# glibc gives large arrays back to the system after every operation, unless told otherwise.
KEPT = {"MALLOC_TRIM_THRESHOLD_": f"{2**34}", "MALLOC_MMAP_THRESHOLD_": f"{2**25}"}
PARTS = {"data.batch_size": 8, "optimizer.accumulate": 4}  # of the batch of 32
WAYS: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "one thread of the BLAS": (ONE, {}),
    "two threads": (TWO, {}),
    "one thread, arrays stay with the process": (ONE | KEPT, {}),
    "one thread, in four parts": (ONE, PARTS),
    "one thread, arrays stay, in four parts": (ONE | KEPT, PARTS),
    "two threads, arrays stay": (TWO | KEPT, {}),
}
# Takes a step for each line that it reads, and answers with its seconds.
WORKER = """
import json, sys, time
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.train.start import (
    large_cache, make_model, make_source, make_source_step, step_batches
)

preset = PRESETS["memory-horizon"]["paper"].changed_by(json.loads(sys.argv[1]))
task = preset.make_task()
config = preset.config(task, "data_controlled", 0)
with large_cache():
    source = make_source(config, task, None)
    take = make_source_step(config, source, *make_model(config, source.vocab_size, 18_900))
    for step, _ in enumerate(sys.stdin):
        time.sleep(0.1)  # until the other process's threads of OpenBLAS no longer spin
        began = time.perf_counter()
        take(step_batches(config, source, step), step, 1.0)
        print(time.perf_counter() - began, flush=True)
"""


class Way:
    """A process that takes steps on request."""

    def __init__(self, environment: dict[str, str], settings: dict[str, int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def seconds(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15, help="of each way (default: 15)")
    turns = parser.parse_args().turns
    ways = [Way(*way) for way in WAYS.values()]
    for _ in range(2):  # the first steps compile
        for way in ways:
            way.seconds()
    times = [[way.seconds() for way in ways] for _ in range(turns)]
    first = [taken[0] for taken in times]
    rows = []
    for name, taken in zip(WAYS, zip(*times, strict=True), strict=True):
        ratio = statistics.median(new / old for new, old in zip(taken, first, strict=True))
        rows.append([name, f"{statistics.median(taken) * 1e3:.0f}", f"{ratio:.3f}"])
    print(markdown_table(["", "ms", "over the first"], rows))


if __name__ == "__main__":
    main()
