"""Files and directories that are whole or not there, and directories that one process holds."""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mlx_gateloop.errors import InputError, one_line


@contextmanager
def replacing(path: str | os.PathLike[str], keep: Path | None = None) -> Iterator[Path]:
    """Yield a path beside `path`, with its suffix; after the block it replaces `path`.

    If the block raises, what was at `path` stays and what was written is deleted. A killed process
    leaves a partial file; `sweep` deletes it. `keep` is a name for the replaced file.
    """
    path = Path(path)
    # A name of its own, as two threads or processes may write the same file.
    partial = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield partial
        flush(partial)
        if keep is not None and path.exists():
            path.replace(keep)
        partial.replace(path)
        flush(path.parent)
    except OSError as error:
        if error.filename in (None, partial, str(partial)):
            error.filename = os.fspath(path)  # the name that the caller knows
        raise
    finally:
        with suppress(OSError):  # a full file system's error says more
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write JSON with sorted keys into a staged directory; a kill may leave a part of it."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EISDIR)  # on SMB
_STAGING = ".making-"  # the folder beside a target; no error names it


def require_new(target: Path) -> None:
    """Check that a file can be new there, before the work that makes it."""
    if target.exists():
        raise InputError(f"{target}: exists; give another file")
    require_writable(target)


def require_writable(target: Path) -> None:
    """Check that the nearest folder above a target that exists can be written in."""
    parent = next(p for p in Path(os.path.realpath(target)).parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{target}: {parent} is not a folder to write in; give another path")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a path beside the target; the directory or file made there replaces it afterwards.

    What a link names is replaced, not the link. After an exception in the block, the target is as
    it was. What a killed process leaves, the next one with the same target deletes.
    """
    given, target = target, Path(os.path.realpath(target)) if target.is_symlink() else target
    missing = [p for p in target.absolute().parents if not p.exists()]
    new = target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _delete_left(target)
        prefix = f"{_STAGING}{target.name}-"
        with TemporaryDirectory(prefix=prefix, dir=target.parent) as folder, locked(Path(folder)):
            new = Path(folder) / target.name
            yield new
            flush_tree(new)
            _replace(target, new, Path(folder) / "before")
            flush(target.parent)
    except (OSError, RuntimeError) as error:  # MLX reports a failed write as RuntimeError
        reason = one_line(error).replace(str(new), str(given))
        if isinstance(error, OSError) and _STAGING in str(error.filename):
            reason = error.strerror or reason
        raise InputError(f"{given}: {reason}; free space there or give another output") from error
    except InputError as error:
        raise InputError(str(error).replace(str(new), str(given))) from error
    finally:
        for directory in missing:
            with suppress(OSError):  # not empty: the target is in there
                directory.rmdir()


def _delete_left(target: Path) -> None:
    """Delete the folders of killed processes, after putting the target back if it is there."""
    for folder in target.parent.iterdir():
        # The random end has no hyphen: "model" does not take the folders of "model-b".
        if folder.name.rpartition("-")[0] == f"{_STAGING}{target.name}":
            with suppress(InputError, OSError), locked(folder) as held:  # in use, or another user's
                if not held:
                    continue  # it may be in use
                if (folder / "before").exists() and not target.exists():
                    (folder / "before").rename(target)
                shutil.rmtree(folder)


def _replace(target: Path, new: Path, old: Path) -> None:
    """Rename a finished directory or file; the old one waits at `old`, see `_delete_left`."""
    if not target.is_dir():
        new.replace(target)
        return
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:  # Ctrl-C too
        old.rename(target)
        raise


def contents(directory: Path) -> list[Path]:
    """List what is in a directory, but for what the Finder leaves where it was shown."""
    return [path for path in directory.iterdir() if path.name != ".DS_Store"]


def left_in(directory: Path) -> list[Path]:
    """Temporary files of `replacing`: left by killed processes, or being written now."""
    return [path for path in directory.glob(".*-" + "[0-9a-f]" * 8 + "*") if path.is_file()]


def sweep(directory: Path) -> None:
    """Delete what killed processes left of `replacing` in a directory that is `locked`."""
    for partial in left_in(directory):
        partial.unlink()


def flush(path: Path) -> None:
    """Wait until a file, or a directory's list of names, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if sys.platform == "darwin":  # fsync leaves the data in the drive's cache there
            with suppress(OSError):  # not every file system can do this
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems cannot do this for a directory
            raise
    finally:
        os.close(descriptor)


def flush_tree(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        flush(path)


@contextmanager
def locked(directory: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a directory against others; `wait` or raise InputError if it is held.

    The kernel locks the directory itself, so a crash leaves nothing and it can be renamed. Yields
    False on a file system without locks.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            advice = "wait until it ends, or give another directory"
            raise InputError(f"{directory}: another process is writing there; {advice}") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file, which may be larger than the memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksum(arrays: Iterable[tuple[str, np.ndarray]], *texts: str) -> str:
    """SHA-256 of texts and of named arrays: their names, dtypes, shapes and values, in order."""
    digest = hashlib.sha256(json.dumps(texts).encode())
    for name, array in arrays:
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
