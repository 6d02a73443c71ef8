"""The machines of a launch, the addresses of their ranks, and how MLX's engines learn of these."""

import json
import random
import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mlx_gateloop.errors import InputError, one_line, shown

LOCAL = "127.0.0.1"  # this machine, without ssh
SSH_FAILED = 255  # ssh's own exit code
BACKENDS = ("ring", "jaccl", "jaccl-ring", "nccl")


@dataclass(frozen=True)
class Host:
    """The machine of a rank."""

    ssh: str  # name to reach it; 127.0.0.1 is this machine, without ssh
    ips: tuple[str, ...]  # addresses at which its rank listens
    rdma: tuple[Any, ...] = ()  # for JACCL: the devices that lead to each rank, None for itself


@dataclass(frozen=True)
class Hostfile:
    """The machines of a launch, as in a hostfile of `mlx.launch`."""

    hosts: list[Host]  # machine of each rank
    backend: str = "ring"  # MLX's engine
    envs: tuple[str, ...] = ()  # variables for all ranks, `NAME=VALUE`

    def addresses(self, port: int) -> list[list[str]]:
        """The addresses at which each rank listens, with ports counted from the first."""
        ports = count(port)
        return [[f"{ip}:{next(ports)}" for ip in host.ips] for host in self.hosts]

    def variables(self, rank: int, port: int) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables of MLX's engine on a rank, and contents of files by variable."""
        values, first = {"MLX_RANK": str(rank)}, self.hosts[0].ips[0]
        if self.backend == "ring":
            return values, {"MLX_HOSTFILE": json.dumps(self.addresses(port))}
        if self.backend == "nccl":
            here = [host.ssh for host in self.hosts[:rank]].count(self.hosts[rank].ssh)
            values |= {"NCCL_HOST_IP": first, "NCCL_PORT": str(port)}
            values |= {"MLX_WORLD_SIZE": str(len(self.hosts)), "CUDA_VISIBLE_DEVICES": str(here)}
            return values, {}
        values |= {"MLX_JACCL_COORDINATOR": f"{first}:{port}"}
        values |= {"MLX_JACCL_RING": "1"} if self.backend == "jaccl-ring" else {}
        return values, {"MLX_IBV_DEVICES": json.dumps([host.rdma for host in self.hosts])}


def local_hosts(count: int) -> Hostfile:
    return Hostfile([Host(LOCAL, (LOCAL,))] * count)


def read_hostfile(path: Path) -> Hostfile:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content = content if isinstance(content, dict) else {"hosts": content}
        hosts = [
            Host(str(entry["ssh"]), _texts(entry["ips"]), tuple(_listed(entry.get("rdma") or [])))
            for entry in content["hosts"]
        ]
        envs = _texts(content.get("envs") or [])
        hostfile = Hostfile(hosts, content.get("backend") or "ring", envs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        example = '[{"ssh": "desk1", "ips": ["10.0.0.1"]}, ...]'
        raise InputError(f"{path}: not a hostfile ({one_line(error)}); write {example}") from None
    if hostfile.backend not in BACKENDS:
        expected = f"expected one of {', '.join(BACKENDS)}, got {shown(hostfile.backend)}"
        raise InputError(f"{path}: backend: {expected}")
    if not hosts:
        raise InputError(f"{path}: has no hosts")
    if not all(re.match(r"\w+=", pair, re.ASCII) for pair in hostfile.envs):
        raise InputError(f"{path}: envs: expected NAME=VALUE in each, got {shown(hostfile.envs)}")
    for host in hosts:
        if not re.fullmatch(r"\w[\w.@:-]*", host.ssh, re.ASCII):
            raise InputError(f"{path}: {shown(host.ssh)} is not the name of a machine")
        if not host.ips:
            raise InputError(f"{path}: {shown(host.ssh)} has no address in its ips")
        for address in host.ips:
            try:
                socket.getaddrinfo(address, None, socket.AF_INET)
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or one_line(error)
                where = f"{path}: {shown(host.ssh)}"
                raise InputError(f"{where}: unknown address {shown(address)} ({reason})") from None
    return hostfile


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, _listed(value)))


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {shown(value)}")
    return value


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that are free on this machine."""
    for _ in range(100):
        first = random.randint(20000, 32000)  # Linux takes others for outgoing connections
        try:
            with ExitStack() as sockets:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind((LOCAL, port))
            return first
        except OSError:
            continue
    raise InputError(f"no {count} consecutive free ports between 20000 and 32000; give a --port")


def require_free(address: str, port: int) -> None:
    """Require that a rank can listen there; MLX would share a port with another program."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen()
        except (OSError, OverflowError) as error:  # Overflow: above 65535
            reason = getattr(error, "strerror", None) or one_line(error)
            raise InputError(f"{address} port {port}: {reason}; give another --port") from None
