"""The paths that a command of this folder takes."""

import argparse
from pathlib import Path


def paths(description: str | None, *names: str, last: str | None = None) -> list[Path]:
    """Return the paths on the command line; ends with a usage line where one is missing.

    Args:
        description: The module's docstring.
        names: Of the paths.
        last: Name of one or more paths after them, if any.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in names:
        parser.add_argument(name, type=Path)
    if last:
        parser.add_argument(last, type=Path, nargs="+")
    given = vars(parser.parse_args())
    return [given[name] for name in names] + (given[last] if last else [])
