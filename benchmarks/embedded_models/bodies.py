"""Functions of a file for a model to complete, and the test of its output."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CONTEXT = 4000  # characters before a function that a model reads, from the start of a line


@dataclass(frozen=True)
class Function:
    """A function of a file."""

    before: str  # the lines above it, at most `CONTEXT` characters
    header: str  # its lines from `def` to the last one before its body
    body: str  # its own body, from the docstring on
    indent: int  # spaces before `def`

    @property
    def prompt(self) -> str:
        return self.before + self.header

    def ends(self, written: str) -> int | None:
        """Return the line where a body ends: the first line that is not indented deeper."""
        line = re.search(rf"^[ \t]{{0,{self.indent}}}\S", written, re.MULTILINE)
        return line.start() if line else None

    def accepts(self, body: str) -> bool:
        """Return True if `ast.parse` accepts the function with a body."""
        return len(self._parsed(body)) == 1

    def is_documentation(self, body: str) -> bool:
        """Return True if a body that is accepted is a docstring and nothing else."""
        (function,) = self._parsed(body)
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        return len(function.body) == 1 and ast.get_docstring(function) is not None

    def _parsed(self, body: str) -> list[ast.stmt]:
        """Parse the function in a block that permits its indentation; no statement if it fails."""
        source = self.header + body
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            try:
                tree = ast.parse("if True:\n" * (self.indent > 0) + source)
            except (SyntaxError, ValueError):  # ValueError: a null character
                return []
        outer, *after = tree.body
        return [*outer.body, *after] if isinstance(outer, ast.If) else tree.body


def functions(text: str) -> Iterator[Function]:
    """Yield a Python file's functions with bodies that begin on a new line."""
    lines = [line + "\n" for line in text.split("\n")]  # as `ast` counts them
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        first, body = node.lineno - 1, node.body[0].lineno - 1
        header = "".join(lines[first:body])
        if body == first or not header.rstrip().endswith(":"):
            continue
        before = "".join(lines[:first])
        if len(before) > CONTEXT:
            before = before[-CONTEXT:].partition("\n")[2]
        yield Function(before, header, "".join(lines[body : node.end_lineno]), node.col_offset)


def body(function: Function, pieces: Iterable[str]) -> tuple[str, bool]:
    """Collect a body from the pieces that a model writes; True if it began another line."""
    written = ""
    for piece in pieces:
        written += piece
        end = function.ends(written)
        if end is not None:
            return written[:end], True
    return written, False
