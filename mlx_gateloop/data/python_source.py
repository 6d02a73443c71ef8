"""The sources of the running Python's library (https://docs.python.org/3/license.html)."""

import os
import sysconfig
import tokenize
from functools import cache
from pathlib import Path

# Tests, what others installed, and text that is not code.
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"}
LOCAL = ("_sysconfigdata", "config-", "sitecustomize")  # differ between machines
SHORTEST = 10  # letters of a line that counts as one when files are compared


@cache
def documents() -> tuple[str, ...]:
    """Read the library's files by path, without those that repeat half of their lines or more."""
    seen: set[str] = set()
    texts = []
    for file in _files(Path(sysconfig.get_path("stdlib"))):
        with tokenize.open(file) as opened:  # decodes as the file says
            text = opened.read()
        lines = [line for line in map(str.strip, text.splitlines()) if len(line) > SHORTEST]
        known = sum(line in seen for line in lines)
        seen.update(lines)
        if 2 * known < len(lines):
            texts.append(text)
    return tuple(texts)


def _files(root: Path) -> list[Path]:
    """The library's files that are the same on every machine."""
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]  # others are not entered
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    named = sorted((file.relative_to(root).as_posix(), file) for file in files)
    return [file for name, file in named if not name.startswith(LOCAL) and file.is_file()]
