"""The long form: each target for some seconds, in a process of its own, with random changes.

    make fuzz SECONDS=60 TARGETS="torch jsonl"

An input that fails is kept in `build/fuzz`. One that hangs or crashes ends its target, and is
`build/fuzz/last`.
"""

import argparse
import faulthandler
import hashlib
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path("build/fuzz")
HANG = 120  # seconds for one input; then Python prints where it is, and ends


def main():
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    from .targets import TARGETS

    names = arguments.targets or list(TARGETS)
    if len(names) == 1:
        return fuzz(names[0], arguments.seconds)
    command = [sys.executable, "-m", "fuzz", "--seconds", str(arguments.seconds)]
    return max(subprocess.run([*command, name]).returncode != 0 for name in names)


def fuzz(name, seconds):
    """Try changed files of a target; returns 1 if one failed."""
    from .attempts import Attempts
    from .targets import TARGETS

    HERE.mkdir(parents=True, exist_ok=True)
    attempts, chance, seen, cases = Attempts(TARGETS[name]), random.Random(), set(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data, cases = attempts.changed(chance), cases + 1
        (HERE / "last").write_bytes(data)
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            attempts(data)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            if (kind := (type(error), where.filename, where.lineno)) not in seen:
                seen.add(kind)
                traceback.print_exc()
                (HERE / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
        finally:
            faulthandler.cancel_dump_traceback_later()
    attempts.close()
    print(f"{name:22} {cases:8,} cases {len(seen):3} finds", flush=True)
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main())
