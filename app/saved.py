"""Conversations in files: a folder of them, and what the page asks of it."""

import re
from pathlib import Path

from app.engine import Engine
from mlx_gateloop.errors import InputError

NAME = re.compile(r"[^\W_][\w .-]{0,59}")
SUFFIX = ".safetensors"


class Saved:
    """The conversations of a folder; whoever may use the app may open them.

    Args:
        folder: Made when the first one is saved.
        engine: Holds the states that are written and read.
    """

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder, self.engine = folder, engine

    def names(self) -> list[str]:
        """Newest first."""
        files = self.folder.glob(f"*{SUFFIX}")
        return [f.stem for f in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]

    def save(self, name: str, session: str, model: str, messages: list[dict[str, str]]) -> None:
        """Write a conversation with its state.

        Raises:
            InputError: Not a name for a file, or nothing to save.
        """
        if not messages:
            raise InputError("There is nothing to save yet.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.engine.save_conversation(session, model, messages, self._path(name))

    def open(self, name: str) -> tuple[str, str, list[dict[str, str]]]:
        """The conversation's new id, its model and its messages.

        Raises:
            InputError: There is no such conversation, or its model has changed.
        """
        if name not in self.names():
            raise InputError("Choose a saved conversation.")
        return self.engine.load_conversation(self._path(name))

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name or ""):
            raise InputError("A name has letters, digits, spaces, dots and dashes, 60 at most.")
        return self.folder / f"{name}{SUFFIX}"
