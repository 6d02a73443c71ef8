"""A comparison of contenders: the table of their forward passes and gradients."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlx_gateloop.bench.measure import (
    Contender,
    median_times,
    megabytes,
    milliseconds,
    peak_bytes,
    ratio,
)
from mlx_gateloop.io.tables import markdown_table


@dataclass(frozen=True)
class Comparison:
    """Seconds by contender; the first is ours."""

    forward: dict[str, float]
    gradient: dict[str, float]
    table: str
    shares: dict[str, float]  # of our GB/s, forward and gradient, in those of a copy

    def over_ours(self, name: str, kind: str = "forward") -> float | None:
        """A contender's time over ours; None if it is absent."""
        times: dict[str, float] = getattr(self, kind)
        return times[name] / next(iter(times.values())) if name in times else None


def compare(
    contenders: Mapping[str, Contender],
    moved: int | None = None,
    moved_by_gradient: int | None = None,
    copy: str | None = None,
) -> Comparison:
    """Time contenders, ours first.

    Args:
        contenders: By name.
        moved: Bytes that the forward pass must read and write; adds a column of GB/s.
        moved_by_gradient: The same for the gradient, including its forward pass.
        copy: The contender that copies `moved` bytes; adds the share of its GB/s.
    """
    forward = median_times({name: c.forward for name, c in contenders.items()})
    gradient = median_times({name: c.gradient for name, c in contenders.items() if c.gradient})
    limit = moved / forward[copy] if moved and copy else None
    rows = []
    for name, contender in contenders.items():
        row = [name, _beside(forward, name)]
        if moved:
            row.append(_rate(moved / forward[name], limit))
        row.append(megabytes(peak_bytes(contender.forward)) if contender.is_mlx else "-")
        if contender.gradient is not None:
            row.append(_beside(gradient, name))
            if moved_by_gradient:
                row.append(_rate(moved_by_gradient / gradient[name], limit))
            row.append(ratio(gradient[name], forward[name]))
            row.append(megabytes(peak_bytes(contender.gradient)) if contender.is_mlx else "-")
        else:
            row += ["-"] * (4 if moved_by_gradient else 3)
        rows.append(row)
    rate = "GB/s (of a copy's)" if limit else "GB/s"
    header = ["", "forward ms", *([rate] if moved else []), "peak MB", "gradient ms"]
    header += [*([rate] if moved_by_gradient else []), "gradient / forward", "peak MB"]
    ours = next(iter(contenders))
    shares = {}
    if limit and moved:
        shares["forward"] = moved / forward[ours] / limit
        if moved_by_gradient and ours in gradient:
            shares["gradient"] = moved_by_gradient / gradient[ours] / limit
    return Comparison(forward, gradient, markdown_table(header, rows), shares)


def _rate(bytes_a_second: float, limit: float | None) -> str:
    share = f" ({bytes_a_second / limit:.0%})" if limit else ""
    return f"{bytes_a_second / 1e9:.2f}{share}"


def _beside(times: Mapping[str, float], name: str) -> str:
    return f"{milliseconds(times[name])} ({ratio(times[name], next(iter(times.values())))})"
