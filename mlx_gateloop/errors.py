"""The one exception that means: what the user gave us was wrong."""

import re
import reprlib

_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class InputError(ValueError):
    """Input that cannot be used; its message is one line: what is wrong, where, what to do."""


def one_line(error: BaseException) -> str:
    """Shorten an exception's text to a part of a one-line message."""
    return shortened(str(error)[:10_000]) or type(error).__name__  # it may quote megabytes


def shortened(text: str) -> str:
    """Put a text on one line of at most 200 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def printable(line: str) -> str:
    """Escape what would control the terminal, and what changes the direction of the text."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], line)


def shown(value: object) -> str:
    """Represent a value from a file in at most 200 characters, looking at its first items only."""
    return shortened(_SHORT.repr(value))


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 100, 100, 40
