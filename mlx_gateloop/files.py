"""The one way a file is written: whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside `path` to write to; after the block it takes `path`'s place.

    If the block raises, what was at `path` stays and what was written goes.

    Args:
        path: The file; its directory must exist. The yielded path has the same suffix, by which
            several writers choose a format.

    Raises:
        OSError: The file cannot be put in its place.
    """
    path = Path(path)
    # A name of its own, as two threads or processes may write the same file.
    partial = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
