"""Events from a rank to its launcher: lines of JSON on the rank's standard output."""

import io
import json
import sys
from contextlib import suppress
from typing import Any


def send(**event: Any) -> None:
    """Print an event, on a line of its own even after text without an end of line."""
    print(f"\n{json.dumps(event)}", file=sys.__stdout__, flush=True)


class TextEvents(io.TextIOBase):
    """A standard output that turns its text into events."""

    def write(self, text: str) -> int:
        send(text=text)
        return len(text)


def received(line: bytes) -> dict[str, Any]:
    """The event of a line; what a library prints directly is text."""
    if line.startswith(b"{"):
        with suppress(ValueError):
            return dict(json.loads(line))
    return {"text": line.decode(errors="replace") + "\n"} if line else {}
