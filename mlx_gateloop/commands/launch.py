"""`gateloop launch`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from mlx_gateloop.commands.parser import parse
from mlx_gateloop.distributed.hosts import BACKENDS, local_hosts, read_hostfile
from mlx_gateloop.errors import InputError

OVER_RANKS = ("train", "eval")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("-n", type=int, metavar="N", help="ranks on this machine, which share its processors")
    text = 'the machines: [{"ssh": "desk1", "ips": ["10.0.0.1"]}, ...], as for mlx.launch'
    add("--hostfile", type=Path, metavar="FILE", help=text)
    text = "MLX's backend; default: that of the hostfile, or ring, the only one tested"
    add("--backend", choices=BACKENDS, help=text)
    add("--port", type=int, metavar="P", help="first port (default: 32323; free ones with -n)")
    text = "path of Python on the machines"
    add("--python", default=sys.executable, metavar="FILE", help=text)
    text = "time limit for an exchange with other ranks, one of which may be saving"
    add("--limit", type=float, default=120.0, metavar="SECONDS", help=text)
    text = "time limit for all ranks to connect"
    add("--start-limit", type=float, default=30.0, metavar="SECONDS", help=text)
    text = "restart up to N times from the last checkpoint after losing a rank"
    add("--restarts", type=int, default=0, metavar="N", help=text)
    add("command", nargs=argparse.REMAINDER, help="-- and a command: " + " or ".join(OVER_RANKS))
    command.set_defaults(run=_launch)


def _launch(arguments: argparse.Namespace) -> int:
    from mlx_gateloop.distributed.launch import Settings, launch

    if (arguments.n is None) == (arguments.hostfile is None):
        raise InputError("launch: give either -n N or --hostfile FILE")
    for name, least in {"n": 1, "restarts": 0, "limit": 1, "start_limit": 1, "port": 1}.items():
        if (given := getattr(arguments, name)) is not None and not least <= given <= 65535:
            flag = f"-{name}" if name == "n" else f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: expected {least} to 65535, got {given:g}")
    argv = arguments.command[arguments.command[:1] == ["--"] :]
    if not argv or argv[0] not in OVER_RANKS:
        raise InputError(f"launch: expected -- and one of the commands {', '.join(OVER_RANKS)}")
    parse(argv)
    hosts = read_hostfile(arguments.hostfile) if arguments.n is None else local_hosts(arguments.n)
    hosts = replace(hosts, backend=arguments.backend or hosts.backend)
    how = arguments.port, arguments.python, arguments.limit, arguments.start_limit
    return launch(Settings(hosts, *how), argv, arguments.restarts)
