"""A small model of training over ranks: the time of a step, and of a run in which ranks fail."""

import math
from dataclasses import dataclass

import numpy as np


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


def fit(measured: list[tuple[float, int, float]]) -> Link:
    """Fit a link to bytes, ranks and seconds of sums, by least squares of relative distances."""
    num_bytes, ranks, seconds = (np.array(column, float) for column in zip(*measured, strict=True))
    hops = 2 * (ranks - 1)
    terms = np.stack([hops, hops * num_bytes / ranks], 1) / seconds[:, None]
    latency, inverse = np.linalg.lstsq(terms, np.ones(len(seconds)), rcond=None)[0]
    return Link(max(0.0, float(latency)), 1 / max(1e-15, float(inverse)))


@dataclass(frozen=True)
class Cluster:
    """Ranks that train together; times are in seconds."""

    ranks: int
    compute: float  # of a step on a rank, without waiting
    spread: float  # standard deviation of the logarithm of that time: the stragglers
    exchange: float  # of a step's gradients
    failure: float  # mean time from one failure of a rank to its next
    save: float  # of a checkpoint
    restart: float  # from a failure to the next step: the limit of an exchange, and the start

    @property
    def young(self) -> float:
        """Seconds between checkpoints by Young's first-order formula, sqrt(2 save failure / ranks).

        Source: J. W. Young, A first order approximation to the optimum checkpoint interval,
        Communications of the ACM 17(9), 1974.
        """
        return math.sqrt(2 * self.save * self.failure / self.ranks)


def simulate(cluster: Cluster, steps: int, interval: int, seed: int) -> float:
    """Simulate a run with a checkpoint after each interval of steps; return its seconds.

    A step takes as long as its slowest rank. A failure, at an exponentially distributed moment,
    loses what came after the last checkpoint.
    """
    draw = np.random.default_rng(seed)
    logs = draw.normal(0, cluster.spread, (1024, cluster.ranks)).max(1)
    times = cluster.compute * np.exp(logs) + cluster.exchange
    clock, done = 0.0, 0
    next_failure = draw.exponential(cluster.failure / cluster.ranks)
    while done < steps:
        count = min(interval, steps - done)
        took = float(times[draw.integers(len(times), size=count)].sum()) + cluster.save
        if clock + took <= next_failure:
            clock, done = clock + took, done + count
            continue
        clock = next_failure + cluster.restart
        next_failure = clock + draw.exponential(cluster.failure / cluster.ranks)
    return clock


def best_interval(cluster: Cluster, steps: int, runs: int = 5) -> int:
    """The number of steps between checkpoints, a power of two, that makes a run shortest.

    Intervals far beyond Young's are left out: they would hardly ever pass without a failure.
    """
    longest = min(steps, 8 * cluster.young / cluster.compute)
    candidates = [1 << power for power in range(5, int(longest).bit_length())]

    def mean(interval: int) -> float:
        return float(np.mean([simulate(cluster, steps, interval, seed) for seed in range(runs)]))

    return min(candidates, key=mean)
