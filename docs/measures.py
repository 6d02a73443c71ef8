"""Sizes of a checkout, a column a path: python docs/measures.py PATH [PATH ...]"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("mlx_gateloop", "app", "convert", "tests", "benchmarks", "docs", "hook")
CODE = {".py", ".js", ".css", ".html", ".cpp", ".c", ".h", ".inc", ".metal", ".cuda"}
CLAUSE = re.compile(r"(What|How|Whether|Which|Where|That|Whose|Who|When)\b")


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


def measure(root: Path) -> dict[str, str]:
    """Names and values of one checkout; only files that git tracks count."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True
    )
    files = [root / name for name in listed.stdout.splitlines() if (root / name).is_file()]
    texts = {path: path.read_text("utf-8") for path in files if path.suffix in CODE}
    lines = {
        room: sum(
            bool(line.strip())
            for path, text in texts.items()
            if path.relative_to(root).parts[0] == room
            for line in text.splitlines()
        )
        for room in ROOMS
    }
    result = {f"lines of code, {room}": f"{count:,}" for room, count in lines.items()}
    result["lines of code"] = f"{sum(lines.values()):,}"
    package = [
        path
        for path in texts
        if path.relative_to(root).parts[0] in ("mlx_gateloop", "app", "convert")
    ]
    source = {path: texts[path] for path in package if path.suffix == ".py"}
    trees = [ast.parse(text) for text in source.values()]
    words = [text for tree in trees for text in docstrings(tree)]
    readme = (root / "README.md").read_text("utf-8")
    return result | {
        "files": f"{len(files):,}",
        "longest file of the package, lines": str(max(t.count("\n") for t in source.values())),
        "longest function of the package, lines": str(max(n for t in trees for n in functions(t))),
        "functions of more than 40 lines": str(sum(n > 40 for t in trees for n in functions(t))),
        "`Any` in the package": str(sum(len(re.findall(r"\bAny\b", t)) for t in source.values())),
        "docstrings beginning with What, How, Whether, ...": str(
            sum(bool(CLAUSE.match(w)) for w in words)
        ),
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
