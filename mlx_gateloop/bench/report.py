"""Reports: Markdown, printed as it grows and saved with its plots if there is a directory."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mlx_gateloop.bench.measure import (
    BUDGET,
    CACHE_BYTES,
    FEWEST_TURNS,
    TURNS,
    cache_limit,
)
from mlx_gateloop.io.files import replacing
from mlx_gateloop.io.tables import markdown_table

REPORTS = ("ops", "model", "train")


@dataclass(frozen=True)
class Target:
    """A ratio with a limit, at least or at most; `measured` is None if a peer is absent."""

    what: str
    measured: float | None
    limit: float
    at_least: bool

    def row(self, quick: bool) -> list[str]:
        goal = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        if self.measured is None:
            return [self.what, goal, "-", "not measured: a contender is missing"]
        met = (self.measured >= self.limit) if self.at_least else (self.measured <= self.limit)
        verdict = "not judged: --quick" if quick else "met" if met else "**not met**"
        return [self.what, goal, f"{self.measured:.2f}", verdict]


class Report:
    """A report that grows by sections.

    Args:
        name: `ops`, `model` or `train`; names the files.
        directory: For `<name>.md` and `<name>-*.png`; None only prints.
        quick: Small sizes; targets are not judged.
        own_cache: MLX's default cache limit, bytes.
    """

    def __init__(
        self, name: str, directory: Path | None, quick: bool = False, own_cache: int = 32 << 20
    ) -> None:
        self.name = name
        self.quick = quick
        self.own_cache = own_cache
        self._directory = directory
        self._targets: list[Target] = []
        self._texts: list[str] = []
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def add(self, text: str) -> None:
        print(text + "\n", flush=True)
        self._texts.append(text)

    def plot(self, name: str, title: str, draw: Callable[[Path, str], None]) -> None:
        """If there is a directory, call `draw(path, title)` to write a PNG, and link it here."""
        if self._directory is not None:
            path = self._directory / f"{self.name}-{name}.png"
            draw(path, title)
            self.add(f"![{title}]({path.name})")

    def target(
        self, what: str, measured: float | None, limit: float, *, at_least: bool = True
    ) -> None:
        self._targets.append(Target(what, measured, limit, at_least))

    def end(self) -> None:
        rows = [target.row(self.quick) for target in self._targets]
        self.add("## Targets\n\nRatios within this run; figures of other machines will differ.")
        self.add(markdown_table(["target", "goal", "measured", ""], rows))
        if self._directory is not None:
            with replacing(self._directory / f"{self.name}.md") as partial:
                partial.write_text("\n\n".join(self._texts) + "\n", encoding="utf-8")


def write_report(name: str, quick: bool = False, directory: Path | None = None) -> None:
    """Measure and print the tables of `gateloop bench NAME`.

    Args:
        name: One of `REPORTS`.
        quick: Small sizes, seconds instead of minutes; targets are not judged.
        directory: Also save Markdown and plots here; created if missing.
    """
    # Slow to import: they need NumPy, mlx-lm and more.
    from mlx_gateloop.bench.machine import absent_lines, header

    command = f"gateloop bench {name}{' --quick' if quick else ''}"
    command += f" --out {directory}" if directory else ""
    part = import_module(f"mlx_gateloop.bench.{name}")
    with cache_limit(CACHE_BYTES) as own_cache:
        report = Report(name, directory, quick, own_cache)
        report.add(f"# gateloop bench {name}")
        report.add(header(command, own_cache, CACHE_BYTES))
        report.add(
            f"Median of {TURNS} runs, or of {FEWEST_TURNS} if they took over {BUDGET:g} s; "
            "contenders take turns on the same arrays, and each warms up in its turn. Peak is "
            "MLX's memory beyond the inputs. In brackets: the time over ours, the first row."
        )
        if absent := absent_lines(part.PEERS):
            report.add("\n".join(absent))
        part.measure(report)
        report.end()
