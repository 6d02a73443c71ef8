"""A folder of saved conversations, one file each; the file's name is the title."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlx_gateloop.errors import InputError, shown
from mlx_gateloop.io.files import locked, sweep

from ..generation.models import Models
from ..generation.prefix_cache import PrefixCache
from ..generation.words import is_mark
from . import file
from .file import Messages

LONGEST = 60  # characters of a name
SUFFIX = ".safetensors"
DELETED = "deleted"  # folder of the last conversations that were deleted
KEPT_DELETED = 20


class ConversationFolder:
    """A folder of at most `max_files` conversations and `max_bytes`, open to every user."""

    def __init__(
        self,
        folder: str | Path,
        models: Models,
        prefix_cache: PrefixCache,
        max_files: int = 2_000,
        max_bytes: int = 2**30,
    ) -> None:
        self.folder = Path(os.path.expanduser(folder))  # noqa: PTH111 - "~" may stay
        if self.folder.is_file():
            raise InputError(f"--conversations {folder}: a file; give a folder")
        self._models, self._cache = models, prefix_cache
        self._max_files, self._max_bytes = max_files, max_bytes

    def names(self, search: str = "") -> list[str]:
        """Return the names of the conversations that contain a text, newest first."""
        wanted = search.strip().casefold()
        return [
            path.stem
            for path, _ in self._files()
            if wanted in path.stem.casefold() or wanted in file.text(path).casefold()
        ]

    def keep(
        self,
        name: str,
        version: int,
        session: str,
        model: str,
        messages: Messages,
        branches: Sequence[Messages] = (),
    ) -> tuple[str, int]:
        """Write a conversation with its states; return its name and the version of its file.

        If the file is not of this version, another page has changed it, or there is none yet: then
        the conversation gets a free name.
        """
        with self._locked():
            path = self._path(name)
            if not version or _version(path) != version:
                path = self._free(path)
            others = [size for other, size in self._files() if other != path]
            if len(others) >= self._max_files:
                saved = f"{self._max_files} conversations are saved"
                raise InputError(f"not saved: {saved}; delete some of them")
            left = min(max(0, self._max_bytes - sum(others)), file.MAX_BYTES)
            file.save(path, session, model, messages, self._models, self._cache, left, branches)
            return path.stem, _version(path)

    def rename(self, name: str, new: str) -> None:
        source, target = self._known(name), self._path(new)
        with self._locked():
            if name != new and os.path.lexists(target):
                raise InputError(f"{new} already exists; choose another name.")
            source.rename(target)

    def delete(self, name: str) -> str:
        """Move a conversation to the last few deleted ones; return its name for `restore`."""
        path, trash = self._known(name), self.folder / DELETED
        with self._locked():
            trash.mkdir(exist_ok=True)
            path.replace(last := self._free(trash / path.name))
            last.touch()
            others = {*trash.glob(f"*{SUFFIX}")} - {last}  # a clock may go back
            for old in sorted(others, key=_version, reverse=True)[KEPT_DELETED - 1 :]:
                old.unlink()
        return last.stem

    def restore(self, name: str) -> str:
        """Undo `delete`; return the conversation's name, another one if it was taken."""
        path = self.folder / DELETED / self._path(name).name
        with self._locked():
            if not path.is_file():
                raise InputError(f"{name} is no longer among the deleted conversations.")
            target = self._free(self._path(name))
            path.rename(target)
            return target.stem

    def open(self, name: str) -> tuple[str, str, Messages, list[Messages], int]:
        """Load a conversation; return its new id, model, messages, branches and version."""
        path = self._known(name)
        version = _version(path)
        return *file.load(path, self._models, self._cache), version

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Make the folder and hold it: two writers could take the same name or free space."""
        if self.folder.parts[:1] == ("~",):
            raise InputError("not saved: no home directory; start the app with --conversations DIR")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder, wait=True) as held:
                if held:
                    sweep(self.folder)
                yield
        except OSError as error:
            raise InputError(f"{self.folder.name}: cannot be written: {error.strerror}") from error

    def _files(self) -> list[tuple[Path, int]]:
        """Return the files with their sizes, newest first; skip links to other folders."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                inside = path.resolve().parent == self.folder.resolve() and path.is_file()
                status = path.stat()
            except (OSError, RuntimeError):  # deleted meanwhile, or a link to itself
                continue
            if inside and _is_name(path.stem):
                found.append((status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, path, size in sorted(found, reverse=True)]

    def _known(self, name: str) -> Path:
        if name not in [path.stem for path, _ in self._files()]:
            reason = "another tab may have renamed or deleted it"
            raise InputError(f"{shown(name)} is not saved: {reason}")
        return self._path(name)

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not _is_name(name):
            raise InputError(f"A title has at most {LONGEST} letters, digits, spaces and . _ -")
        return self.folder / f"{name}{SUFFIX}"

    def _free(self, path: Path) -> Path:
        """Return the path, or the first with a number at its end that does not exist."""
        number, found = 1, path
        stem = path.stem[:55].encode()[:190].decode(errors="ignore")
        while os.path.lexists(found):
            number += 1
            found = path.with_name(f"{stem.strip()} {number}{SUFFIX}")
        return found


def title(messages: Messages) -> str:
    """Make a name from the first message."""
    first = next((m["content"] for m in messages if m["role"] == "user"), "")
    words = " ".join("".join(c if _fits(c) else " " for c in first[:200]).split())
    words = words.strip(" ._-")[:48].strip(" ._-")
    return words if _is_name(words) else "Conversation"


def _is_name(text: str) -> bool:
    is_short = 0 < len(text) <= LONGEST and len(text.encode("utf-8", "replace")) <= 200  # of 255
    return is_short and text[0].isalnum() and all(map(_fits, text))


def _fits(character: str) -> bool:
    """Tell if a name may have a character: many scripts write vowels as marks on letters."""
    return is_mark(character) or character.isalnum() or character in " ._-"


def _version(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
