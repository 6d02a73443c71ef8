"""The launcher: what it makes of the ends of its ranks, here scripts that train nothing."""

import json
import os
import signal
import sys
from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.commands import fails

from mlx_gateloop.cli import main
from mlx_gateloop.distributed import hosts, launch
from mlx_gateloop.distributed.hosts import Host, Hostfile
from mlx_gateloop.distributed.launch import received
from mlx_gateloop.distributed.rank import TextEvents, send
from mlx_gateloop.errors import InputError

RANK = """#!{python} -SE
import json, os, signal, sys, time
settings = json.loads(sys.argv[3])
rank = settings["rank"]
def send(**event):
    print(json.dumps(event), flush=True)
acts = json.loads(sys.argv[sys.argv.index("--data") + 1])
act = acts[rank]
for part in (b"[ring]", b" Socket ", b"3", b" was closed by the peer", b"\\n"):
    os.write(2, part)
    time.sleep(0.02)
send(started=True)
if act == "wait in MLX, interrupt":
    os.kill({pid}, signal.SIGTERM)
if "wait in MLX" in act:
    time.sleep(600)
send(joined=True)
place = f"{folder}/{{settings['restarted']}}-"
open(f"{{place}}{{rank}}", "w").close()
while not all(os.path.exists(f"{{place}}{{other}}") for other in range(len(acts))):
    time.sleep(0.01)  # as MLX waits for all
if act == "die" or act == "die once" and not settings["restarted"]:
    os.kill(os.getpid(), signal.SIGKILL)
if act == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
if act in ("interrupt", "obey"):
    if act == "interrupt":
        os.kill({pid}, signal.SIGINT)
    while b"stop" not in os.read(0, 100):
        pass
    act = [130, "interrupted at step 7"]
code, line = act if isinstance(act, list) else (0, "")
send(text=f"of rank {{rank}}\\n")
send(code=code, line=line)
sys.exit(code)
"""
SEEN = """#!{python} -SE
import json, os
print(json.dumps({{"text": os.getcwd() + " " + os.environ["GREETING"] + "\\n"}}))
print(json.dumps({{"code": 0, "line": ""}}))
"""
LOST = "lost (killed, stopped or unreachable); what was saved is whole, continue with --resume"
CONNECT = "see that the machines reach each other's ips at these ports"


def executable(path, text, **words):
    path.write_text(text.format(python=sys.executable, **words))
    path.chmod(0o755)
    return path


@pytest.fixture
def launched(tmp_path, monkeypatch, capsys):
    """Launch scripts with an act for each rank; returns the exit code and what was shown."""
    monkeypatch.setattr(launch, "GRACE", 1.0)
    script = executable(tmp_path / "rank", RANK, pid=os.getpid(), folder=tmp_path)

    def start(*acts, interpreter=script, options=()):
        for mark in (*tmp_path.glob("True-*"), *tmp_path.glob("False-*")):
            mark.unlink()
        words = ["launch", "-n", str(len(acts)), "--python", str(interpreter), *options]
        words += ["--", "train", "--out", str(tmp_path / "out"), "--data", json.dumps(acts)]
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return start


def test_a_rank_that_dies_is_named_and_the_run_goes_on_from_its_checkpoint(launched):
    failed = [1, "a rank was lost in the exchange of gradients"]
    lines = [f"rank 0 on 127.0.0.1: {failed[1]}", f"error: rank 1 on 127.0.0.1: {LOST}"]
    assert launched(failed, "die")[::2] == (1, lines)
    code, out, lines = launched("train", "die once", options=["--restarts", "1"])
    assert (code, lines[-1]) == (0, "restart 1 of 1")
    assert {*out.splitlines()} == {"of rank 0", "of rank 1"}
    assert f"error: rank 1 on 127.0.0.1: {LOST}" in lines


def test_a_rank_that_stops_is_named_and_ended(launched):
    code, _, lines = launched([1, "no answer of the other ranks"], "stop", options=["--limit", "1"])
    assert (code, lines[-1]) == (1, f"error: rank 1 on 127.0.0.1: {LOST}")


def test_wrong_input_is_one_line_and_ends_the_others_soon(launched):
    line = "error: data.batch_size: too few"
    assert launched([2, line], [2, line])[::2] == (2, [line])
    lines = ["error: rank 1 on 127.0.0.1: text.txt: no such file"]
    wrong = [2, "error: text.txt: no such file"]
    assert launched([1, "a rank was lost"], wrong)[::2] == (2, lines)
    assert launched("obey", wrong, options=["--limit", "60"])[::2] == (2, lines)


def test_ranks_that_do_not_start_or_connect(launched, monkeypatch):
    limits = {}

    def join_by(attempt):  # the limit does not pass before the first rank waits for the other alone
        joined = [(rank.started, rank.joined) for rank in attempt._ranks]
        return limits[attempt] if joined == [(True, True), (True, False)] else float("inf")

    late = property(join_by, limits.__setitem__)
    monkeypatch.setattr(launch.Attempt, "_join_by", late, raising=False)
    code, _, lines = launched("train", "train", interpreter="/no/python")
    assert code == 2
    assert lines[-1].endswith("did not start; see if `/no/python --version` works")
    code, _, lines = launched("train", "wait in MLX", options=["--start-limit", "2"])
    assert (code, len(lines)) == (2, 1)
    assert lines[0] == f"error: rank 1 on 127.0.0.1: not connected after 2 s; {CONNECT}"


def test_a_rank_on_another_machine_has_the_folder_and_the_variables(tmp_path, monkeypatch, capsys):
    machines = [{"ssh": name, "ips": ["127.0.0.1"]} for name in ("127.0.0.1", "desk9")]
    content = {"hosts": machines, "envs": ["GREETING=hello you"]}
    (tmp_path / "hosts.json").write_text(json.dumps(content))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def start(ssh, interpreter):  # which stands in for ssh
        executable(tmp_path / "ssh", f"#!/bin/sh\n{ssh}\n")
        words = ["--hostfile", str(tmp_path / "hosts.json"), "--python", str(interpreter)]
        code = main(["launch", *words, "--", "train", "--out", str(tmp_path / "out")])
        return code, *capsys.readouterr()

    code, _, err = start("exit 255", sys.executable)
    line = "error: rank 1 on desk9 did not start; see if `ssh desk9 true` works\n"
    assert (code, err) == (2, line)
    assert not (tmp_path / "out").exists()
    script = executable(tmp_path / "it's python", SEEN)
    code, out, err = start('while [ "$1" != desk9 ]; do shift; done; exec sh -c "$2"', script)
    assert (code, out, err) == (0, f"{Path.cwd()} hello you\n" * 2, "")


def test_ctrl_c_stops_all_ranks(launched):
    code, _, lines = launched("interrupt", "obey")
    assert (code, lines) == (130, ["interrupted at step 7"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert launched("wait in MLX, interrupt", "wait in MLX")[::2] == (130, [])


TRAIN = "-- train --out out"


@pytest.mark.parametrize(("words", "message"), [
    ("-n 2", "launch: expected -- and one of the commands train, eval"),
    (TRAIN, "launch: give either -n N or --hostfile FILE"),
    (f"-n 0 {TRAIN}", "-n: expected 1 to 65535, got 0"),
    (f"-n 2 --port 70000 {TRAIN}", "--port: expected 1 to 65535, got 70000"),
    (f"--hostfile none.json {TRAIN}", "none.json: No such file or directory"),
])  # fmt: skip
def test_wrong_usage(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fails(capsys, "launch", *words.split()) == f"error: {message}"
    with pytest.raises(SystemExit, match="2"):  # the launched command is checked first
        main(["launch", "-n", "2", *TRAIN.split(), "--bad"])


HERE = '{"ssh": "desk", "ips": ["127.0.0.1"]}'


@pytest.mark.parametrize(("text", "message"), [
    ("[", "not a hostfile"),
    ('[{"ssh": "desk"}]', "not a hostfile ('ips')"), ("[]", "has no hosts"),
    ('[{"ssh": "-oProxyCommand=x", "ips": ["127.0.0.1"]}]', "'-oProxyCommand=x' is not the"),
    (f'{{"hosts": [{HERE}], "backend": "mpi"}}', "backend: expected"),
    (f'{{"hosts": [{HERE}], "envs": ["rm"]}}', "envs: expected NAME=VALUE in each"),
    ('[{"ssh": "desk", "ips": "127.0.0.1"}]', "not a hostfile (expected a list"),
    (f'[{HERE[:-1]}, "rdma": "en2"}}]', "not a hostfile (expected a list"),
    ('[{"ssh": "desk", "ips": []}]', "'desk' has no address in its ips"),
    ('[{"ssh": "desk", "ips": ["no.invalid"]}]', "'desk': unknown address 'no.invalid'"),
])  # fmt: skip
def test_bad_hostfiles(tmp_path, capsys, text, message):
    path = tmp_path / "hosts.json"
    path.write_text(text)
    line = fails(capsys, "launch", "--hostfile", str(path), *TRAIN.split())
    assert line.startswith(f"error: {path}: {message}")


def test_a_hostfile_becomes_the_variables_of_each_engine(tmp_path):
    content = {"backend": "jaccl-ring", "envs": ["MLX_METAL_FAST_SYNCH=1"]}
    content["hosts"] = [{"ssh": "desk", "ips": ["127.0.0.1"], "rdma": [None, "en2"]}] * 2
    (tmp_path / "hosts.json").write_text(json.dumps(content))
    read = hosts.read_hostfile(tmp_path / "hosts.json")
    assert read == Hostfile(
        [Host("desk", ("127.0.0.1",), (None, "en2"))] * 2, "jaccl-ring", ("MLX_METAL_FAST_SYNCH=1",)
    )
    values = {"MLX_RANK": "1", "MLX_JACCL_COORDINATOR": "127.0.0.1:7", "MLX_JACCL_RING": "1"}
    assert read.variables(1, 7) == (values, {"MLX_IBV_DEVICES": '[[null, "en2"], [null, "en2"]]'})
    ring = Hostfile([Host("a", ("10.0.0.1", "10.0.0.2")), Host("b", ("10.0.0.3",))])
    addresses = [["10.0.0.1:7", "10.0.0.2:8"], ["10.0.0.3:9"]]
    assert ring.addresses(7) == addresses
    assert ring.variables(0, 7) == ({"MLX_RANK": "0"}, {"MLX_HOSTFILE": json.dumps(addresses)})
    nccl = Hostfile([Host("a", ("10.0.0.1",)), *[Host("b", ("10.0.0.3",))] * 2], "nccl")
    values = {"MLX_RANK": "2", "NCCL_HOST_IP": "10.0.0.1", "NCCL_PORT": "7"}
    assert nccl.variables(2, 7)[0] == values | {"MLX_WORLD_SIZE": "3", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_port_in_use():
    first = hosts.free_ports(2)
    assert first + 1 < 32768  # where Linux begins with those of outgoing connections
    hosts.require_free("127.0.0.1", first)
    with pytest.raises(InputError, match=r"192\.0\.2\.1 port \d+: .*; give another --port"):
        hosts.require_free("192.0.2.1", first)  # an address of no machine
    with pytest.raises(InputError, match=r"port 65536: .*; give another --port"):
        hosts.require_free("127.0.0.1", 65536)  # of the second rank
    code = f"import socket; s = socket.create_server(('127.0.0.1', {first}), reuse_port=True); "
    code += "from mlx_gateloop.distributed.hosts import require_free; "
    code += f"require_free('127.0.0.1', {first})"
    child = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"127.0.0.1 port {first}: Address already in use" in child.stderr


def test_nothing_is_restarted_after_ctrl_c(monkeypatch):
    made = []

    def attempt(*_, restarted):
        made.append(restarted)
        return SimpleNamespace(run=lambda: 1, interrupts=len(made) == 2)

    monkeypatch.setattr(launch, "Attempt", attempt)
    assert launch.launch(None, [], restarts=5) == 1
    assert made == [False, True]


def test_events_between_lines_of_text(capfdbinary):
    print("unfinished", end="")
    send(rank=1, joined=True)
    TextEvents().write("ä\n{")
    os.write(1, b"\xff of a library\n3\n")
    events = [received(line) for line in capfdbinary.readouterr().out.split(b"\n")]
    assert [event for event in events if event] == [
        {"text": "unfinished\n"}, {"rank": 1, "joined": True}, {"text": "ä\n{"},
        {"text": "\N{REPLACEMENT CHARACTER} of a library\n"}, {"text": "3\n"},
    ]  # fmt: skip


def test_a_rank_that_has_ended_is_ended(monkeypatch, capsys):
    """On macOS a group whose processes have ended cannot be signalled."""
    monkeypatch.setattr(os, "killpg", Mock(side_effect=PermissionError))
    rank = launch.Rank(0, Host("127.0.0.1", ()), ["true"])
    rank.end()
    assert rank.process.returncode == 0
    for byte in "ä".encode():  # which two reads may split
        rank.read_error(bytes([byte]))
    assert capsys.readouterr().err == "ä"
