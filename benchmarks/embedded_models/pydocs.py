"""The documentation of the running Python, read from its sources."""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from mlx_gateloop.data.documents import Document

SKIPPED = {"antigravity", "idlelib", "lib2to3", "pydoc_data", "test", "this", "turtledemo"}
# The public names of modules whose sources have another name.
PUBLIC_NAMES = {"posixpath": "os.path", "builtins": ""}


@dataclass(frozen=True)
class Entry:
    """A module, class or function: its dotted name, its signature if known, its docstring."""

    name: str
    signature: str
    doc: str

    @property
    def text(self) -> str:
        return f"{self.name}{self.signature}\n\n{self.doc}\n"

    @property
    def chat(self) -> list[dict[str, str]]:
        """A question about the entry, answered with the docstring's first paragraph."""
        question = f"What does `{self.name}` do?" if self.signature else f"What is `{self.name}`?"
        first = " ".join(self.doc.split("\n\n")[0].split())
        answer = f"`{self.name}{self.signature}`: {first}" if self.signature else first
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@cache
def groups() -> list[list[Document]]:
    """Return the language and library reference, in groups of texts that repeat each other."""
    from pydoc_data.topics import topics

    modules: dict[str, list[Entry]] = {}
    for entry in library():
        modules.setdefault(entry.name.split(".")[0], []).append(entry)
    language: list[list[Document]] = [[text.strip() + "\n"] for _, text in sorted(topics.items())]
    return language + [
        ["\n".join(entry.text for entry in entries), *(entry.chat for entry in entries)]
        for _, entries in sorted(modules.items())
    ]


def library() -> Iterator[Entry]:
    """Yield the public entries of the standard library that have a docstring, by module."""
    root = Path(os.__file__).parent
    for name in sorted(sys.stdlib_module_names - SKIPPED):
        if name.startswith("_"):
            continue
        source = root / f"{name}.py"
        folder = root / name
        if source.exists():
            yield from _from_source(source, name)
        elif (folder / "__init__.py").exists():
            for file in sorted(folder.glob("*.py")):
                inner = "" if file.stem == "__init__" else f".{file.stem}"
                if not inner.startswith("._"):
                    yield from _from_source(file, name + inner)
        elif name in sys.builtin_module_names or _is_compiled(name):
            yield from _from_module(name)


def _from_source(file: Path, module: str) -> Iterator[Entry]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(file.read_bytes())
    name = PUBLIC_NAMES.get(module, module)
    yield from _entry(name, "", ast.get_docstring(tree))
    yield from _members(tree, name)


def _members(tree: ast.Module | ast.ClassDef, owner: str) -> Iterator[Entry]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        name, doc = f"{owner}.{node.name}", ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            yield from _entry(name, "", doc)
            yield from _members(node, name)
        else:
            method = isinstance(tree, ast.ClassDef)
            yield from _entry(name, _signature(node.args, method), doc)


def _signature(arguments: ast.arguments, method: bool) -> str:
    names = ast.unparse(arguments).split(", ")
    if method and names[0] in ("self", "cls"):
        names = names[1:]
    return f"({', '.join(names)})"


def _is_compiled(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def _from_module(name: str) -> Iterator[Entry]:
    """Import a module written in C, which runs no Python code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated modules
            module = importlib.import_module(name)
    except ImportError:  # not on this platform
        return
    owner = PUBLIC_NAMES.get(name, name)
    yield from _entry(owner or name, "", inspect.getdoc(module))
    for member, value in sorted(vars(module).items()):
        if not member.startswith("_") and not isinstance(value, ModuleType):
            yield from _from_object(value, f"{owner}.{member}" if owner else member)


def _from_object(value: object, name: str) -> Iterator[Entry]:
    if not callable(value) or not isinstance(value.__doc__, str):
        return
    doc = inspect.cleandoc(value.__doc__)
    if isinstance(value, type):
        yield from _entry(name, "", doc)
        for member, attribute in sorted(vars(value).items()):
            if not member.startswith("_"):
                yield from _from_object(attribute, f"{name}.{member}")
        return
    signature = getattr(value, "__text_signature__", None)
    head, _, rest = doc.partition("\n")
    short = name.rpartition(".")[2]
    if signature is None and head.startswith(f"{short}("):  # the docstring starts with it
        signature = re.split(r" --?>? ", head.removeprefix(short))[0]
        doc = rest.strip() or doc
    yield from _entry(name, _plain(signature or "()"), doc)


def _plain(signature: str) -> str:
    """Remove the marks for bound and positional-only arguments."""
    for mark in ("$module", "$self", "$type", "/"):
        signature = signature.replace(f"{mark}, ", "").replace(f", {mark})", ")")
        signature = signature.replace(f"({mark})", "()")
    return signature


def _entry(name: str, signature: str, doc: str | None) -> Iterator[Entry]:
    if doc and name:
        yield Entry(name, signature, doc.strip())
