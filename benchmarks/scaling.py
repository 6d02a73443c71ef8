"""Training over ranks: `python benchmarks/scaling.py` measures here, and predicts.

Sums of 4 kB to 250 MB over 2 and 4 ranks on loopback, in turns, then steps of a recipe on 1, 2 and
4 ranks; the best of several turns counts, as other programs may run. The rest is computed: steps
over links of other kinds. `--predict` leaves out the measurements. `--overhead` measures the
exchange of 124M gradients alone: steps on two ranks that sleep for a second instead of computing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from mlx_gateloop.distributed.hosts import free_ports
from mlx_gateloop.io.tables import markdown_table

SIZES = (1 << 10, 1 << 18, 1 << 22, 62_000_000)  # float32
TURNS = 9
GRADIENT = 2 * 124e6  # bytes, of 124M parameters in bfloat16
COMPUTE = 1.0  # seconds of a step on one rank, whatever the number of ranks
FORWARD = 1 / 3  # the forward pass's share of them


@dataclass(frozen=True)
class Link:
    """A connection between two ranks of a ring."""

    latency: float  # seconds from one rank to the next, whatever is sent
    bandwidth: float  # bytes per second

    def exchange(self, num_bytes: float, ranks: int) -> float:
        """Seconds of a sum over a ring, in which each of n ranks sends 2 (n - 1) / n of the bytes.

        t = 2 (n - 1) (latency + bytes / n / bandwidth)
        """
        return 2 * (ranks - 1) * (self.latency + num_bytes / ranks / self.bandwidth)


LINKS = {  # nominal bandwidths with 10% off, and common latencies: assumed, not measured
    "Ethernet, 1 Gb/s": Link(2e-4, 0.9 * 1e9 / 8),
    "Ethernet, 10 Gb/s": Link(1e-4, 0.9 * 10e9 / 8),
    "Thunderbolt, 40 Gb/s": Link(1e-4, 0.9 * 40e9 / 8 / 2),  # half of it is the display's
    "NVLink, 450 GB/s": Link(1e-5, 0.9 * 450e9),
}


def sums() -> None:
    """Sum arrays over the ranks, one after another; the first rank prints the seconds."""
    import mlx.core as mx

    mx.set_cache_limit(2 << 30)
    group = mx.distributed.init(strict=True, backend="ring")
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(TURNS + 1):
        for size in SIZES:
            array = mx.zeros(size)
            mx.eval(array, mx.distributed.all_sum(mx.zeros(1)))
            began = time.perf_counter()
            mx.eval(mx.distributed.all_sum(array))
            times[size].append(time.perf_counter() - began)
    if group.rank() == 0:
        print(json.dumps({size: min(t) for size, t in times.items()}))


def overheads() -> None:
    """Exchange 124M gradients in steps that sleep; the first rank prints what they took beside."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map

    from mlx_gateloop.distributed.world import World
    from mlx_gateloop.model.lm import PRESETS, Model
    from mlx_gateloop.train.exchange import start_sum

    class Sleeping(World):
        """Ranks with a backward pass that sleeps before each gradient, longer for larger ones."""

        def start_sum(self, array: mx.array) -> mx.array:
            self.slept += (1 - FORWARD) * COMPUTE * array.size / size
            time.sleep(max(0.0, self.began + self.slept - time.perf_counter()))
            return super().start_sum(array)

    mx.set_cache_limit(4 << 30)
    if sys.platform == "linux":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["MLX_RANK"])]})
    weights = Model(PRESETS["125m"]).trainable_parameters()
    gradient = tree_map(mx.zeros_like, weights)
    mx.eval(gradient)
    size = sum(leaf.size for _, leaf in tree_flatten(gradient))
    group = mx.distributed.init(strict=True, backend="ring")
    hosts = ["this machine"] * group.size()
    rows: dict[str, list[float]] = {}
    for turn in range(TURNS + 1):
        for dtype, overlaps in product((mx.float32, mx.bfloat16), (False, True)):
            world = Sleeping(group, hosts, overlaps=overlaps)
            world.any(False, "start")
            world.began, world.slept = time.perf_counter(), FORWARD * COMPUTE
            summed = start_sum(world, gradient, dtype)()
            mx.eval(summed)
            took = time.perf_counter() - world.began - COMPUTE
            name = f"{str(dtype).rpartition('.')[2]}, {'beside' if overlaps else 'after'} the sleep"
            if turn:
                rows.setdefault(name, []).append(took)
    if group.rank() == 0:
        print(json.dumps({name: [min(times), median(times)] for name, times in rows.items()}))


def on_ranks(ranks: int, part: str) -> Any:
    """Run a part of this script on ranks that share the machine; returns what the first prints."""
    first = free_ports(ranks)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{first + i}"] for i in range(ranks)]))
        variables = os.environ | {"MLX_HOSTFILE": str(hosts), "OPENBLAS_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--rank", part]
        children = [
            subprocess.Popen(words, env=variables | {"MLX_RANK": str(i)}, stdout=subprocess.PIPE)
            for i in range(ranks)
        ]
        output, *_ = [child.communicate()[0] for child in children]
    return json.loads(output)


def tokens_per_second(ranks: int, config: str) -> float:
    words = ["train", "--dry-run", "--config", config, "--data", "python-source"]
    launched = ["launch", "-n", str(ranks), "--limit", "600", "--", *words] if ranks > 1 else words
    command = [sys.executable, "-m", "mlx_gateloop", *launched]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"speed\s+([\d,]+) tokens/s", text)
    assert found, text
    return float(found[1].replace(",", ""))


def measure(config: str) -> None:
    rows = [
        [f"{4 * int(size):,}", str(ranks), f"{1e3 * seconds:.2f}"]
        for ranks in (2, 4)
        for size, seconds in on_ranks(ranks, "sums").items()
    ]
    print(markdown_table(["bytes", "ranks", "ms"], rows) + "\n")
    turns = [[tokens_per_second(ranks, config) for ranks in (1, 2, 4)] for _ in range(3)]
    speeds = [max(column) for column in zip(*turns, strict=True)]
    rows = [[str(n), f"{s:,.0f}"] for n, s in zip((1, 2, 4), speeds, strict=True)]
    print(markdown_table(["ranks here", "tokens/s"], rows) + "\n")


def predict() -> None:
    ranks = (2, 4, 8, 16, 32, 64)
    rows = []
    for name, link in LINKS.items():
        shares = [COMPUTE / (COMPUTE + link.exchange(GRADIENT, n)) for n in ranks]
        rows.append([name, *(f"{100 * share:.0f}%" for share in shares)])
    print(markdown_table(["share of a step that computes", *map(str, ranks)], rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", choices=("sums", "overheads"), help=argparse.SUPPRESS)
    parser.add_argument("--overhead", action="store_true", help="only the exchange of gradients")
    parser.add_argument("--predict", action="store_true", help="only compute")
    parser.add_argument("--config", default="mlx_gateloop/configs/tinyshakespeare.yaml")
    arguments = parser.parse_args()
    if arguments.rank:
        {"sums": sums, "overheads": overheads}[arguments.rank]()
    elif arguments.overhead:
        rows = [[n, *(f"{t:.2f}" for t in ts)] for n, ts in on_ranks(2, "overheads").items()]
        print(markdown_table(["exchange", "s beside the second, best", "median"], rows))
    else:
        if not arguments.predict:
            measure(arguments.config)
        predict()
