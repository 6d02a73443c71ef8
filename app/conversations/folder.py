"""Conversations in files: a folder of them, and what the page asks of it."""

import re
import threading
from pathlib import Path

from mlx_gateloop.errors import InputError

from ..generation.engine import Engine
from .file import MOST_BYTES

NAME = re.compile(r"[^\W_][\w .-]{0,59}")
SUFFIX = ".safetensors"


class Saved:
    """The conversations of a folder; whoever may use the app may open them.

    Args:
        folder: Made when the first one is saved.
        engine: Holds the states that are written and read.
        most: Conversations in the folder.
        most_bytes: Of all of them.
    """

    def __init__(
        self, folder: Path, engine: Engine, most: int = 200, most_bytes: int = 2**30
    ) -> None:
        self.folder, self.engine = folder, engine
        self._most, self._most_bytes = most, most_bytes
        self._saving = threading.Lock()

    def names(self) -> list[str]:
        """Newest first."""
        return [file.stem for file, _ in self._files()]

    def save(self, name: str, session: str, model: str, messages: list[dict[str, str]]) -> None:
        """Write a conversation with its state.

        Raises:
            InputError: Not a name for a new file, nothing to save, or no room.
        """
        if not messages:
            raise InputError("There is nothing to save yet.")
        path = self._path(name)
        with self._saving:  # or two would take the same name, or the last room
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                taken = path.is_symlink() or path.exists()
            except OSError as error:
                raise InputError(f"{self.folder}: cannot be written: {error.strerror}") from error
            if taken:
                raise InputError(f"{name} is there already; choose another name.")
            files = self._files()
            if len(files) >= self._most:
                raise InputError(
                    f"{self._most} conversations are saved already; delete some of {self.folder}"
                )
            room = max(0, self._most_bytes - sum(size for _, size in files))
            self.engine.save_conversation(session, model, messages, path, min(room, MOST_BYTES))

    def open(self, name: str) -> tuple[str, str, list[dict[str, str]]]:
        """The conversation's new id, its model and its messages.

        Raises:
            InputError: There is no such conversation, or its model has changed.
        """
        if name not in self.names():
            raise InputError("Choose a saved conversation.")
        return self.engine.load_conversation(self._path(name))

    def _files(self) -> list[tuple[Path, int]]:
        """Files with their sizes, newest first; none that a link brings from elsewhere."""
        found = []
        for file in self.folder.glob(f"*{SUFFIX}"):
            try:
                inside = file.resolve().parent == self.folder.resolve() and file.is_file()
                status = file.stat()
            except (OSError, RuntimeError):  # gone meanwhile, or a link to itself
                continue
            if inside and NAME.fullmatch(file.stem):
                found.append((status.st_mtime, file, status.st_size))
        return [(file, size) for _, file, size in sorted(found, reverse=True)]

    def _path(self, name: str) -> Path:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError("A name has letters, digits, spaces, dots and dashes, 60 at most.")
        return self.folder / f"{name}{SUFFIX}"
