"""A folder of saved conversations."""

import os
import re
from pathlib import Path

from mlx_gateloop.errors import InputError
from mlx_gateloop.io.files import locked, sweep

from ..generation.models import Models
from ..generation.prefix_cache import PrefixCache
from . import file

NAME = re.compile(r"[^\W_][\w .-]{0,59}")
SUFFIX = ".safetensors"


class ConversationFolder:
    """A folder of at most `max_files` conversations and `max_bytes`, open to every user."""

    def __init__(
        self,
        folder: str | Path,
        models: Models,
        prefix_cache: PrefixCache,
        max_files: int = 200,
        max_bytes: int = 2**30,
    ) -> None:
        self.folder = Path(os.path.expanduser(folder))  # noqa: PTH111 - "~" may stay
        self._models, self._cache = models, prefix_cache
        self._max_files, self._max_bytes = max_files, max_bytes

    def names(self) -> list[str]:
        """Return the names of the conversations, newest first."""
        return [path.stem for path, _ in self._files()]

    def save(self, name: str, session: str, model: str, messages: list[dict[str, str]]) -> bool:
        """Write a conversation with its states; return False if the states were too large."""
        if not messages:
            raise InputError("There is nothing to save yet.")
        path = self._path(name)
        if self.folder.parts[:1] == ("~",):
            raise InputError("not saved: no home directory; start the app with --conversations DIR")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Two writers could take the same name or the last free space.
            with locked(self.folder, wait=True) as held:
                if held:
                    sweep(self.folder)
                free = self._free_bytes(path)
                return file.save(path, session, model, messages, self._models, self._cache, free)
        except OSError as error:
            message = f"{self.folder.name}: cannot be written: {error.strerror}"
            raise InputError(message) from error

    def _free_bytes(self, path: Path) -> int:
        """Return the number of bytes left for a new conversation."""
        if path.is_symlink() or path.exists():
            raise InputError(f"{path.stem} already exists; choose another name.")
        files = self._files()
        if len(files) >= self._max_files:
            where = self.folder.name
            raise InputError(
                f"{self._max_files} conversations are saved; delete some in the folder {where}"
            )
        free = max(0, self._max_bytes - sum(size for _, size in files))
        return min(free, file.MAX_BYTES)

    def open(self, name: str) -> tuple[str, str, list[dict[str, str]]]:
        """Load a conversation; return its new id, its model and its messages."""
        if name not in self.names():
            raise InputError("Choose a saved conversation.")
        return file.load(self._path(name), self._models, self._cache)

    def _files(self) -> list[tuple[Path, int]]:
        """Return the files with their sizes, newest first; skip links to other folders."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                inside = path.resolve().parent == self.folder.resolve() and path.is_file()
                status = path.stat()
            except (OSError, RuntimeError):  # deleted meanwhile, or a link to itself
                continue
            if inside and NAME.fullmatch(path.stem):
                found.append((status.st_mtime, path, status.st_size))
        return [(path, size) for _, path, size in sorted(found, reverse=True)]

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError("A name has at most 60 letters, digits, spaces, dots and dashes.")
        return self.folder / f"{name}{SUFFIX}"
