"""Reports: Markdown that is printed section by section and, with a directory, saved."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from mlx_gateloop.bench.measure import BUDGET, FEWEST_TURNS, TURNS
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.tables import markdown_table

REPORTS = ("ops", "model", "train")
PEERS = {"jax": "jax", "torch": "torch", "gateloop-transformer": "gateloop_transformer"}


class Report:
    """A report that grows by sections, in `directory`/`name`.md or printed only."""

    def __init__(self, name: str, directory: Path | None, quick: bool = False) -> None:
        self.quick = quick
        self._file = None if directory is None else directory / f"{name}.md"
        self._sections: list[str] = []
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def add(self, section: str) -> None:
        """Print a section, and save the report with it."""
        print(section + "\n", flush=True)
        self._sections.append(section)
        if self._file is not None:
            write_text(self._file, "\n\n".join(self._sections) + "\n")


def write_report(name: str, quick: bool = False, directory: Path | None = None) -> None:
    """Measure and print the tables of `gateloop bench NAME`; `quick` takes small sizes."""
    from mlx_gateloop.io.machine import facts  # slow to import, as are the parts
    from mlx_gateloop.train.setup import large_cache

    command = f"gateloop bench {name}{' --quick' if quick else ''}"
    command += f" --out {directory}" if directory else ""
    report = Report(name, directory, quick)
    report.add(f"# gateloop bench {name}")
    report.add(markdown_table(["", ""], list(facts(command).items())))
    report.add(
        f"Median of {TURNS} runs, or of {FEWEST_TURNS} if they took over {BUDGET:g} s. Candidates "
        "take turns on the same arrays, and each warms up in its turn. Peak is MLX's memory beyond "
        "the inputs. In brackets: the time over ours, the first row."
    )
    if absent := [f"- {peer}: not installed" for peer in PEERS if not present(peer)]:
        absent.append("\nGet them by: pip install -r requirements-bench.txt")
        report.add("\n".join(absent))
    with large_cache():
        import_module(f"mlx_gateloop.bench.{name}").measure(report)


def present(peer: str) -> bool:
    return find_spec(PEERS[peer]) is not None
