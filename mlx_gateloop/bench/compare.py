"""Contenders side by side: the table of their forward passes and gradients."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlx_gateloop.bench.measure import (
    Contender,
    median_times,
    megabytes,
    milliseconds,
    peak_bytes,
    ratio,
    table,
)


@dataclass(frozen=True)
class Comparison:
    """Seconds by contender; the first is ours."""

    forward: dict[str, float]
    gradient: dict[str, float]
    table: str

    def over_ours(self, name: str, kind: str = "forward") -> float | None:
        """How many times as long as ours a contender takes; None if it is not here."""
        times: dict[str, float] = getattr(self, kind)
        return times[name] / next(iter(times.values())) if name in times else None


def compare(contenders: Mapping[str, Contender], moved: int | None = None) -> Comparison:
    """Time contenders, ours first.

    Args:
        contenders: By name.
        moved: Bytes that the forward pass must read and write; adds a column of GB/s.
    """
    forward = median_times({name: c.forward for name, c in contenders.items()})
    gradient = median_times({name: c.gradient for name, c in contenders.items() if c.gradient})
    rows = []
    for name, contender in contenders.items():
        row = [name, _beside(forward, name)]
        if moved:
            row.append(f"{moved / forward[name] / 1e9:.2f}")
        row.append(megabytes(peak_bytes(contender.forward)) if contender.is_mlx else "-")
        if contender.gradient is not None:
            row += [_beside(gradient, name), ratio(gradient[name], forward[name])]
            row.append(megabytes(peak_bytes(contender.gradient)) if contender.is_mlx else "-")
        else:
            row += ["-"] * 3
        rows.append(row)
    header = ["", "forward ms", *(["GB/s"] if moved else []), "peak MB", "gradient ms"]
    header += ["gradient / forward", "peak MB"]
    return Comparison(forward, gradient, table(header, rows))


def _beside(times: Mapping[str, float], name: str) -> str:
    return f"{milliseconds(times[name])} ({ratio(times[name], next(iter(times.values())))})"
