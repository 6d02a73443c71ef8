"""The one exception that means: what the user gave us was wrong."""


class InputError(ValueError):
    """Input that cannot be used; its message is one line: what is wrong, where, what to do.

    The command line prints the message without a traceback and exits with code 2.
    """
