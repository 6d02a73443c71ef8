"""Run a command and print its output as a record, below title, command, machine and versions.

    python benchmarks/recorded.py "Channels" python -m benchmarks.embedded_models.channels DIR

Ends with the command's exit code, and without a record if it fails.
"""

import argparse
import shlex
import subprocess
import sys

from mlx_gateloop.commands.parser import Parser
from mlx_gateloop.io.machine import facts
from mlx_gateloop.io.tables import markdown_table


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", help="the first line of the record")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a program and its arguments")
    given = parser.parse_args()
    if not given.command:
        parser.error("a command is missing")
    made = facts(shlex.join(given.command))  # before the checkout moves on
    program = sys.executable if given.command[0] == "python" else given.command[0]
    try:
        command = [program, *given.command[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        parser.error(f"{program}: {error.strerror}")
    if done.returncode:
        sys.exit(done.returncode)
    print(
        f"# {given.title}\n\n{markdown_table(['', ''], list(made.items()))}\n\n{done.stdout}",
        end="",
    )


if __name__ == "__main__":
    main()
