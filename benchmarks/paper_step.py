"""Time a training step at the paper's settings of Memory Horizon, where only its cost changes.

python benchmarks/paper_step.py

The last two ways leave biases out, which bounds what fusing them with other operations could save.
Each way has a process of its own. All stay loaded and take turns, so that a slow moment of the
machine affects all. Prints medians of the time by the clock and of the processors' time, and
medians of the turns' ratios to the first way's.
"""

import json
import os
import subprocess
import sys

import numpy as np

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.io.tables import markdown_table

ONE, TWO = ({"OPENBLAS_NUM_THREADS": f"{count}"} for count in (1, 2))
# glibc gives large arrays back to the system after every operation, unless told otherwise.
KEPT = {"MALLOC_TRIM_THRESHOLD_": f"{2**34}", "MALLOC_MMAP_THRESHOLD_": f"{2**25}"}
PARTS = {"data.batch_size": 8, "optimizer.accumulate": 4}  # of the batch of 32
# Other models: what fused biases would save at most, those before GELU and the residual, and all.
MIXED = {"model.bias": False, "model.projection_bias": True, "model.head_bias": True}
WAYS: dict[str, tuple[dict[str, str], dict[str, int | bool]]] = {
    "one thread of the BLAS": (ONE, {}),
    "two threads": (TWO, {}),
    "one thread, arrays stay with the process": (ONE | KEPT, {}),
    "one thread, in four parts": (ONE, PARTS),
    "one thread, arrays stay, in four parts": (ONE | KEPT, PARTS),
    "two threads, arrays stay": (TWO | KEPT, {}),
    "one thread, no biases in channel mixing and transitions": (ONE, MIXED),
    "one thread, no biases in linear layers": (ONE, {"model.bias": False}),
}
# Takes a step for each line that it reads, and answers with its seconds by clock and processors.
WORKER = """
import json, sys, time
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.train.data import make_source
from mlx_gateloop.train.setup import Trainer, large_cache

preset = PRESETS["memory-horizon"]["paper"].changed_by(json.loads(sys.argv[1]))
task = preset.make_task()
config = preset.config(task, "data_controlled", 0)
with large_cache():
    trainer = Trainer(config, make_source(config, task))
    for step, _ in enumerate(sys.stdin):
        time.sleep(0.1)  # until the other process's threads of OpenBLAS no longer spin
        began, spent = time.perf_counter(), time.process_time()
        trainer.step(step)
        print(time.perf_counter() - began, time.process_time() - spent, flush=True)
"""


class Way:
    """A process that takes steps on request."""

    def __init__(self, environment: dict[str, str], settings: dict[str, int | bool]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def seconds(self) -> list[float]:
        """Take a step, and return its time by the clock and that of the processors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            sys.exit("error: a worker ended; it says why above")
        return [float(time) for time in answer.split()]


def main() -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15, help="of each way (default: 15)")
    if (turns := parser.parse_args().turns) < 1:
        parser.error(f"--turns {turns}: expected at least 1")
    ways = [Way(*way) for way in WAYS.values()]
    for _ in range(2):  # the first steps compile
        for way in ways:
            way.seconds()
    times = np.array([[way.seconds() for way in ways] for _ in range(turns)])
    medians = np.median(times, 0) * 1e3
    ratios = np.median(times / times[:, :1], 0)
    rows = [
        [name, f"{clock:.0f}", f"{of_clock:.3f}", f"{spent:.0f}", f"{of_spent:.3f}"]
        for name, (clock, spent), (of_clock, of_spent) in zip(WAYS, medians, ratios, strict=True)
    ]
    header = ["", "ms by the clock", "over the first", "ms of the processors", "over the first"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
