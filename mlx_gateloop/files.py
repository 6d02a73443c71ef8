"""The one way a file or a directory is written: whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mlx_gateloop.errors import InputError, one_line


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


_STAGING = ".making-"  # the folder beside a target; no error names it


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path beside the target; the directory made there replaces it after the block.

    After an exception in the block, the target is as it was. Unlike `mlx_gateloop.save`, which
    adds to a directory, this leaves nothing of an older one.

    Args:
        target: A directory.

    Yields:
        A path of the same name that does not exist yet, in a new directory.

    Raises:
        InputError: The disk is full, or the target cannot be replaced.
    """
    missing = [p for p in target.absolute().parents if not p.exists()]
    new = target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=_STAGING, dir=target.parent) as place:
            new = Path(place) / target.name
            yield new
            _replace(target, new, Path(place) / "before")
    except (OSError, RuntimeError) as error:  # MLX reports a failed write as RuntimeError
        reason = one_line(error).replace(str(new), str(target))
        if isinstance(error, OSError) and _STAGING in str(error.filename):
            reason = error.strerror or reason
        advice = "free space there or give another output"
        raise InputError(f"{target}: {reason}; {advice}") from error
    except InputError as error:
        raise InputError(str(error).replace(str(new), str(target))) from error
    finally:
        for directory in missing:
            with suppress(OSError):  # not empty: the target is in there
                directory.rmdir()


def _replace(target: Path, new: Path, old: Path) -> None:
    try:
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:  # Ctrl-C too
        if old.exists() and not target.exists():
            old.rename(target)
        raise
