"""Reports: Markdown that is printed section by section and, with a directory, saved."""

from importlib import import_module
from pathlib import Path

from mlx_gateloop.bench.measure import BUDGET, FEWEST_TURNS, TURNS, Others
from mlx_gateloop.io.files import write_text
from mlx_gateloop.io.tables import markdown_table

REPORTS = ("ops", "model", "train")


class Report:
    """A report that grows by sections, in `directory`/`name`.md or printed only."""

    def __init__(self, name: str, directory: Path | None, quick: bool, others: Others) -> None:
        self.quick, self.others = quick, others
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


def write_report(
    name: str,
    quick: bool = False,
    directory: Path | None = None,
    program: str = "gateloop bench",
    others: Others = lambda *_: {},
) -> None:
    """Measure and print the tables of `program` NAME; `quick` takes small sizes."""
    from mlx_gateloop.io.machine import facts  # slow to import, as are the parts
    from mlx_gateloop.train.setup import large_cache

    command = f"{program} {name}{' --quick' if quick else ''}"
    command += f" --out {directory}" if directory else ""
    report = Report(name, directory, quick, others)
    report.add(f"# {program} {name}")
    report.add(markdown_table(["", ""], list(facts(command).items())))
    report.add(
        f"Median of {TURNS} runs, or of {FEWEST_TURNS} if they took over {BUDGET:g} s. Candidates "
        "take turns on the same arrays, and each warms up in its turn. Peak is MLX's memory beyond "
        "the inputs. In brackets: the time over ours, the first row."
    )
    with large_cache():
        import_module(f"mlx_gateloop.bench.{name}").measure(report)
