"""Sizes of a checkout, a column a path: `python docs/measures.py PATH [PATH ...]`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("mlx_gateloop", "app", "convert", "tests", "benchmarks", "docs")
CODE = {".py", ".js", ".css", ".html", ".cpp", ".c", ".h", ".inc", ".metal", ".cuda"}
CLAUSE = re.compile(r"(What|How|Whether|Which|Where|That|Whose|Who|When)\b")


def count(text: str) -> int:
    """The number of lines that are not empty."""
    return sum(bool(line.strip()) for line in text.splitlines())


def functions(tree: ast.AST) -> Iterator[int]:
    """The length of every function in lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def docstrings(tree: ast.AST) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def tracked(root: Path) -> list[Path]:
    """The files of a checkout that git tracks."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True
    )
    return [root / name for name in listed.stdout.splitlines() if (root / name).is_file()]


def lines(root: Path, texts: dict[Path, str]) -> dict[str, str]:
    """Lines of code by room and in all."""
    rooms = dict.fromkeys(ROOMS, 0)
    for path, text in texts.items():
        rooms[path.relative_to(root).parts[0]] += count(text)
    python = sum(count(text) for path, text in texts.items() if path.suffix == ".py")
    characters = sum(len("".join(text.split())) for text in texts.values())
    return {
        **{f"lines of code, {room}": f"{number:,}" for room, number in rooms.items()},
        "lines of code": f"{sum(rooms.values()):,}",
        "of these in Python": f"{python:,}",
        "characters of code without white space": f"{characters:,}",
    }


def package(root: Path, texts: dict[Path, str]) -> dict[str, str]:
    """Figures of the installed package's Python."""
    rooms = [root / name for name in ("mlx_gateloop", "app", "convert")]
    modules = [
        text
        for path, text in texts.items()
        if path.suffix == ".py" and any(path.is_relative_to(room) for room in rooms)
    ]
    trees = [ast.parse(text) for text in modules]
    lengths = [length for tree in trees for length in functions(tree)]
    clauses = [bool(CLAUSE.match(text)) for tree in trees for text in docstrings(tree)]
    return {
        "longest module, lines": str(max(text.count("\n") for text in modules)),
        "longest function, lines": str(max(lengths)),
        "functions of more than 40 lines": str(sum(length > 40 for length in lengths)),
        "`Any`": str(sum(len(re.findall(r"\bAny\b", text)) for text in modules)),
        "docstrings that begin with What, How, Whether, ...": str(sum(clauses)),
    }


def measure(root: Path) -> dict[str, str]:
    """Names and values of one checkout."""
    files = tracked(root)
    rooms = [root / name for name in ROOMS]
    texts = {
        path: path.read_text("utf-8")
        for path in files
        if path.suffix in CODE and any(path.is_relative_to(room) for room in rooms)
    }
    readme = (root / "README.md").read_text("utf-8")
    return {
        **lines(root, texts),
        **package(root, texts),
        "files": f"{len(files):,}",
        "README, lines": str(readme.count("\n")),
        "README, words": f"{len(readme.split()):,}",
    }


def main(paths: list[str]) -> None:
    columns = [measure(Path(path).resolve()) for path in paths or ["."]]
    print("| |", " | ".join(paths or ["."]), "|")
    print("|---|", "---:|" * len(columns), sep="")
    for name in columns[0]:
        print(f"| {name} |", " | ".join(column[name] for column in columns), "|")


if __name__ == "__main__":
    main(sys.argv[1:])
