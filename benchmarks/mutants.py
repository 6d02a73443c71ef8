"""Apply seeded mutants to a checkout, and count how many its tests catch.

    python benchmarks/mutants.py CHECKOUT [--count 120] [--seed 0] [--folders ops,model]

CHECKOUT is a clean clone with a `.venv` of its own (`make test` makes it); its files are changed in
place and restored. A mutant counts as caught if its folder's tests fail or take over ten minutes.
"""

import argparse
import ast
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = {
    "ops": "mlx_gateloop/ops",
    "model": "mlx_gateloop/model",
    "train": "mlx_gateloop/train",
    "convert": "convert",
    "watch": "mlx_gateloop/watch",
    "app/generation": "app/generation",
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SECONDS = 600


class Mutant(NamedTuple):
    """A file with one node replaced."""

    file: Path
    line: int
    before: str
    after: str
    source: str


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield the mutants of a module: operators, constants, negations and deleted statements."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    skipped = set()  # type hints change nothing that runs, and messages are no behaviour
    for node in ast.walk(tree):
        hints = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Raise | ast.JoinedStr):
            hints.append(node)
        skipped |= {id(inner) for hint in hints if hint for inner in ast.walk(hint)}
    for node in ast.walk(tree):
        if id(node) not in skipped and (after := _replacement(node)):
            before = ast.get_source_segment(text, node) or ""
            source = _replaced(text, node, after)
            yield Mutant(file, node.lineno, before, after, source)  # type: ignore[attr-defined]


def _replacement(node: ast.AST) -> str | None:
    """Return other code for a node; None if it stays."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        fields = {**dict(ast.iter_fields(node)), "op": SWAPS[type(node.op)]()}
        return f"({ast.unparse(type(node)(**fields))})"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]
        return f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return str(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return str(node.value + 1)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or isinstance(node, ast.AugAssign):
        return "pass"
    return None


def _replaced(text: str, node: ast.AST, after: str) -> str:
    lines = text.encode().splitlines(keepends=True)  # columns count bytes
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    begin, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    middle = lines[first][:begin] + after.encode() + lines[last][end:]
    return b"".join([*lines[:first], middle, *lines[last + 1 :]]).decode()


def is_caught(checkout: Path, mutant: Mutant, tests: str) -> bool:
    """Run a folder's tests on a mutant."""
    original = mutant.file.read_bytes()
    try:
        mutant.file.write_text(mutant.source, encoding="utf-8")
        return not passes(checkout, tests)
    finally:
        mutant.file.write_bytes(original)


def passes(checkout: Path, tests: str) -> bool:
    """Tell if a folder's tests pass in time."""
    command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", tests]
    try:
        done = subprocess.run(command, cwd=checkout, timeout=SECONDS, capture_output=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--count", type=int, default=120, help="in all folders (default: 120)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folders", default=",".join(FOLDERS))
    arguments = parser.parse_args()
    names = arguments.folders.split(",")
    found = total = 0
    for name in names:
        if not passes(arguments.checkout, f"tests/{name}"):
            parser.error(f"tests/{name} fail before any mutant; mend {arguments.checkout}")
        files = sorted((arguments.checkout / FOLDERS[name]).rglob("*.py"))
        every = [mutant for file in files for mutant in mutants(file)]
        chosen = random.Random(arguments.seed).sample(every, arguments.count // len(names))
        caught = 0
        for mutant in chosen:
            seen = is_caught(arguments.checkout, mutant, f"tests/{name}")
            caught += seen
            where = f"{mutant.file.relative_to(arguments.checkout)}:{mutant.line}"
            verdict = "caught" if seen else "MISSED"
            print(f"{verdict} {where}: {mutant.before!r} -> {mutant.after!r}", flush=True)
        print(f"{name}: {caught} of {len(chosen)} caught", flush=True)
        found, total = found + caught, total + len(chosen)
    print(f"in all: {found} of {total} caught ({found / total:.0%})")


if __name__ == "__main__":
    main()
