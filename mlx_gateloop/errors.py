"""The one exception that means: what the user gave us was wrong."""


class InputError(ValueError):
    """Input that cannot be used; its message is one line: what is wrong, where, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """


def one_line(error: BaseException) -> str:
    """Shorten an exception's text to a part of a one-line message."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= 200 else f"{line[:197]}..."
