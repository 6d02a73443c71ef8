"""Events from the ranks to their launcher, between the lines that they print.

mlx.launch hands on what ranks print but no exit codes, so an event is a line of its own there.
"""

import json
import os
import re
import select
from importlib import import_module
from typing import Any

_MARK = b"\x1e"  # ASCII's record separator; no text has it
_NOISE = b"[ring] "  # the rank says it in one line


def send(key: str, to: int = 1, **event: Any) -> None:
    """Print an event, in one write.

    Args:
        key: The launch, so that the output of a command is never taken for an event.
        to: The descriptor; 1 is the standard output.
        event: JSON values.
    """
    os.write(to, _MARK + json.dumps({"key": key, **event}).encode() + b"\n")


def mlx_launch(key: str) -> None:
    """Run mlx.launch on the process's arguments, with an event for the exit of each rank.

    By itself it kills all ranks when one has failed, before they can save or say why they end,
    and takes a whole processor, as it waits for output or input and the latter is always possible.
    """
    launch: Any = import_module("mlx._distributed_utils.launch")

    class Rank(launch.RemoteProcess):  # type: ignore[misc]
        def __init__(self, rank: int, *arguments: Any) -> None:
            self._rank = rank
            super().__init__(rank, *arguments)

        @property
        def exit_status(self) -> tuple[int, bool]:
            send(key, to=2, rank=self._rank, exit=self._process.returncode)
            return 0, False

    launch.RemoteProcess, launch.select = Rank, wait_for_output
    launch.main()


def wait_for_output(
    reading: list[int], writing: list[int], _: list[int], seconds: float
) -> tuple[list[int], list[int], list[int]]:
    """Wait as `select.select`, but only for something to read, and a moment at most."""
    readable = select.select(reading, [], [], min(seconds, 0.1))[0]
    return readable, select.select([], writing, [], 0)[1], []


class Stream:
    """One stream of mlx.launch's output, divided into text to show and events.

    Args:
        key: The launch.
    """

    def __init__(self, key: str) -> None:
        self._key, self._rest = key, b""
        self._is_open = False  # a part of the current line has been shown

    def read(self, data: bytes) -> tuple[bytes, list[dict[str, Any]]]:
        """Take the next bytes; returns the text to show now, and the events."""
        *lines, self._rest = re.split(rb"(?<=[\r\n])", self._rest + data)
        is_open = self._is_open and not lines
        may_be_noise = not is_open and self._rest.startswith(b"[")
        if _MARK not in self._rest and not may_be_noise:
            lines, self._rest = [*lines, self._rest], b""  # a prompt or a bar
        text, events = b"", []
        for line in filter(None, lines):
            shown, mark, event = line.partition(_MARK)
            text += b"" if not self._is_open and shown.startswith(_NOISE) else shown
            self._is_open = not line.endswith((b"\r", b"\n"))
            if mark and (found := self._parsed(event)):
                events.append(found)
        return text, events

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            event: dict[str, Any] = json.loads(line)
            return event if event["key"] == self._key else None
        except (ValueError, KeyError, TypeError):
            return None
