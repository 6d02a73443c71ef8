"""Counts the machine instructions that a CUDA kernel issues for an element."""

import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from tempfile import NamedTemporaryFile

PACKAGE = "nvidia-cuda-nvdisasm"
LABEL = re.compile(r"(\.L_x_\d+):")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*);")
# Code with these is part of every step; a detour for rare numbers has none of them.
EVERY_STEP = ("MUFU", "STG", "LDS", "STS")


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` is the index of the one that a branch leads to."""

    name: str
    guarded: bool
    target: int | None = None


def absence():
    return None if _disassembler() else f"not installed: {PACKAGE}"


def each_tile(cubin):
    """The instructions of a thread for a tile: its largest loop, one that waits if any."""
    code = _disassembled(cubin)
    targets = [n + 1 if at.target is None else at.target for n, at in enumerate(code)]
    loops = [(target, n + 1) for n, target in enumerate(targets) if target <= n]
    waiting = [loop for loop in loops if any(i.name.startswith("BAR") for i in code[slice(*loop)])]
    begin, end = max(waiting or loops, key=lambda loop: loop[1] - loop[0])
    rare: set[int] = set()
    for n in range(begin, end):
        passed = code[n + 1 : targets[n]]
        if code[n].guarded and passed:
            calls = any(i.name.startswith("CALL") for i in passed)
            inner = any(n < low and high <= targets[n] for low, high in loops)
            if (calls or inner) and not any(i.name.startswith(EVERY_STEP) for i in passed):
                rare |= set(range(n + 1, targets[n]))
    return [code[n].name for n in range(begin, end) if n not in rare]


def _disassembled(cubin):
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_disassembler()), "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = text.splitlines()
    labels, count = {}, 0
    for line in lines:
        if label := LABEL.match(line):
            labels[label[1]] = count
        count += bool(INSTRUCTION.match(line))
    found = []
    for guard, name, operands in (m.groups() for m in map(INSTRUCTION.match, lines) if m):
        target = re.search(r"\.L_x_\d+", operands) if name.startswith("BRA") else None
        found.append(Instruction(name, bool(guard), labels[target[0]] if target else None))
    return found


def _disassembler():
    try:
        return next(Path(f.locate()) for f in files(PACKAGE) or [] if f.name == "nvdisasm")
    except (PackageNotFoundError, StopIteration):
        return None
