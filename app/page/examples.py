"""Example prompts."""

CHAT_EXAMPLES = [
    "What does `str.split` do?",
    "What does `re.sub` do?",
    "How do I use os.path.join?",
]
# From files of Python's standard library that are not in the training data of the model `code`.
# Copyright the Python Software Foundation, PSF License Version 2
# (https://docs.python.org/3/license.html).
TEXT_EXAMPLES = {
    "asyncio/queues.py: a class": r'''class QueueEmpty(Exception):
    """Raised when Queue.get_nowait() is called on an empty Queue."""
    pass


class QueueFull(Exception):
    """Raised when the Queue.put_nowait() method is called on a full Queue."""
    pass


class Queue(mixins._LoopBoundMixin):
    """A queue, useful for coordinating producer and consumer coroutines.

    If maxsize is less than or equal to zero, the queue size is infinite. If it
    is an integer greater than 0, then "await put()" will block when the
    queue reaches maxsize, until an item is removed by get().

    Unlike the standard library Queue, you can reliably know this Queue's size
    with qsize(), since your single-threaded asyncio application won't be
    interrupted between calling qsize() and doing an operation on the Queue.
    """

    def __init__(self, maxsize=0):
''',
    "email/base64mime.py: a function": r'''CRLF = '\r\n'
NL = '\n'
EMPTYSTRING = ''

# See also Charset.py
MISC_LEN = 7


# Helpers
def header_length(bytearray):
    """Return the length of s when it is encoded with base64."""
''',
    "py_compile.py: a command line": r"""def main():
    import argparse

    description = 'A simple command-line interface for py_compile module.'
""",
    "nturl2path.py: paths to URLs": r'''def pathname2url(p):
    """OS-specific conversion from a file system path to a relative URL
    of the 'file' scheme; not recommended for general use."""
    # e.g.
    #   C:\foo\bar\spam.foo
    # becomes
    #   ///C:/foo/bar/spam.foo
    import urllib.parse
''',
}
