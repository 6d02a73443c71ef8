"""The paths that a command of this folder takes, and how it reports what ends it early."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlx_gateloop.errors import InputError


def paths(description: str | None, *names: str, last: str | None = None) -> list[Path]:
    """Return the paths on the command line, of these names and one or more of the last name."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in names:
        parser.add_argument(name, type=Path)
    if last:
        parser.add_argument(last, type=Path, nargs="+")
    given = vars(parser.parse_args())
    return [given[name] for name in names] + (given[last] if last else [])


def check_own(folder: Path, *names: str) -> None:
    """Check that a folder is new, or has no other files than these and hidden ones."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file; give another folder")
    if others := {path.name for path in folder.glob("[!.]*")} - {*names}:
        raise InputError(f"{folder}: holds {min(others)}; give a folder of its own")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the process with a line, and exit code 2 where the user can correct the error."""
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print(f"error: {name}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
