"""The long form: each target for some seconds, in a process of its own that a hang can end.

    make fuzz SECONDS=60 TARGETS="torch jsonl"

Where atheris is installed (`pip install atheris`), libFuzzer chooses changes by the lines that they
reach; without it they are drawn at random. An input that fails is kept in `build/fuzz`.
"""

import argparse
import faulthandler
import hashlib
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

HERE = Path("build/fuzz")
HANG, BLOCKED = 10, 120  # seconds of the processor for one input, and of the clock


def main() -> int:
    """Run the targets one after another; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    HERE.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        return _child(arguments.targets[0], arguments.seconds)
    from .targets import TARGETS

    return max(_supervise(name, arguments.seconds) for name in arguments.targets or TARGETS)


def _supervise(name: str, seconds: int) -> int:
    """Start the process of a target again when it ends early: its last input hung or crashed."""
    counted, kept = HERE / f"{name}.count", set(HERE.glob(f"{name}-*"))
    counted.unlink(missing_ok=True)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, "-m", "fuzz", "--child", "--seconds", f"{left:.0f}", name]
        if subprocess.run(command).returncode:
            _keep(name, (HERE / f"{name}.last").read_bytes())
    found = len(set(HERE.glob(f"{name}-*")) - kept)
    cases = counted.stat().st_size if counted.exists() else 0
    print(f"{name:22} {cases:8,} cases {found:3} finds", flush=True)
    return int(found > 0)


def _child(name: str, seconds: int) -> int:
    attempts, run = _prepare(name)
    if find_spec("atheris") is None:
        chance, end = random.Random(), time.monotonic() + seconds
        while time.monotonic() < end:
            run(attempts.changed(chance))
        return 0
    import atheris

    # The loader of an editable install hides modules from `atheris.instrument_imports`.
    for function in _functions():
        atheris.instrument_func(function)
    corpus = HERE / f"{name}.corpus"
    corpus.mkdir(exist_ok=True)
    for seed in attempts.seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-max_len=1000000", "-rss_limit_mb=0", "-verbosity=0"]

    def change(data: bytes, most: int, seed: int) -> bytes:
        return attempts.changed(random.Random(seed), data)[:most]

    atheris.Setup(["fuzz", *options, str(corpus)], run, custom_mutator=change)
    atheris.Fuzz()
    return 0


def _functions() -> Iterator[FunctionType]:
    """All functions and methods of the modules of ours that are loaded."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("mlx_gateloop."):
            continue
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        for owner in (module, *classes):
            for value in list(vars(owner).values()):
                if type(value) is FunctionType and value.__module__ == name:
                    yield value


def _prepare(name: str) -> tuple[Any, Callable[[bytes], None]]:
    """A target, and a function that tries an input and keeps it where it fails."""
    from .attempts import Attempts
    from .targets import TARGETS

    faulthandler.register(signal.SIGPROF, chain=True)
    attempts, seen = Attempts(TARGETS[name]), set()
    last, count = HERE / f"{name}.last", (HERE / f"{name}.count").open("ab", buffering=0)

    def run(data: bytes) -> None:
        last.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, HANG)
        faulthandler.dump_traceback_later(BLOCKED, exit=True)
        try:
            attempts(data)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            if (kind := (type(error), where.filename, where.lineno)) not in seen:
                seen.add(kind)
                traceback.print_exc()
                _keep(name, data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
        count.write(b".")

    return attempts, run


def _keep(name: str, data: bytes) -> None:
    (HERE / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
