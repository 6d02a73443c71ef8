"""The launcher: what it makes of the ends of its ranks, here scripts that train nothing."""

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from subprocess import run

import pytest
from helpers.interpreter import python

from mlx_gateloop.cli import main
from mlx_gateloop.distributed import launch
from mlx_gateloop.distributed.events import Stream, send, wait_for_output
from mlx_gateloop.distributed.hosts import free_ports, local_hosts, read_hostfile, require_free
from mlx_gateloop.errors import InputError

RANK = """#!{python} -SE
import json, os, signal, sys, time
settings, rank = json.loads(sys.argv[3]), int(os.environ["MLX_RANK"])
def send(**event):
    text = json.dumps({{"key": settings["key"], "rank": rank, **event}})
    os.write(1, b"\\x1e" + text.encode() + b"\\n")
acts = json.loads(sys.argv[sys.argv.index("--data") + 1])
act = acts[rank]
os.write(2, b"[ring] Socket 3 was closed by the peer\\n")
send(started=True)
if act == "wait in MLX, interrupt":
    os.kill({pid}, signal.SIGINT)
if "wait in MLX" in act:
    time.sleep(600)
send(joined=True)
open(f"{folder}/{{settings['key']}}-{{rank}}", "w").close()
while len([name for name in os.listdir("{folder}") if settings["key"] in name]) < len(acts):
    time.sleep(0.01)  # as MLX waits for all
os.write(1, b"half a line ")
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
if rank == 0:
    print("of rank", rank, flush=True)
send(code=code, line=line)
sys.exit(code)
"""
LOST = "lost (killed, stopped or unreachable); what was saved is whole, continue with --resume"
ADVICE = "see if `{python} --version` works"
CONNECT = "see that the machines reach each other's ips at these ports"


@pytest.fixture
def launched(tmp_path, monkeypatch, capsys):
    """Launch scripts with an act for each rank; returns the exit code and what was shown."""
    monkeypatch.setattr(launch, "GRACE", 1.0)
    script = tmp_path / "rank"
    script.write_text(RANK.format(python=sys.executable, pid=os.getpid(), folder=tmp_path))
    script.chmod(0o755)

    def start(*acts, interpreter=script, options=()):
        words = ["launch", "-n", str(len(acts)), "--python", str(interpreter), *options]
        words += ["--", "train", "--out", str(tmp_path / "out"), "--data", json.dumps(acts)]
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return start


def test_done_on_all_ranks(launched):
    code, out, lines = launched("train", "train")
    assert (code, lines) == (0, [])
    assert out.count("half a line ") == 2
    assert "of rank 0\n" in out


def test_a_rank_that_dies_is_named_and_the_run_goes_on_from_its_checkpoint(launched):
    failed = [1, "a rank was lost in the exchange of gradients"]
    lines = [f"rank 0 on 127.0.0.1: {failed[1]}", f"error: rank 1 on 127.0.0.1: {LOST}"]
    assert launched(failed, "die")[::2] == (1, lines)
    code, _, lines = launched("train", "die once", options=["--restarts", "1"])
    assert (code, lines[-1]) == (0, "restart 1 of 1")
    assert f"error: rank 1 on 127.0.0.1: {LOST}" in lines


def test_a_rank_that_stops_is_named_and_ended(launched):
    failed = [1, "no answer of the other ranks"]
    code, _, lines = launched(failed, "stop", options=["--limit", "1"])
    assert (code, lines[-1]) == (1, f"error: rank 1 on 127.0.0.1: {LOST}")


def test_wrong_input_is_one_line(launched):
    line = "error: data.batch_size: too few"
    assert launched([2, line], [2, line])[::2] == (2, [line])
    code, _, lines = launched([1, "a rank was lost"], [2, "error: text.txt: no such file"])
    assert (code, lines) == (2, ["error: rank 1 on 127.0.0.1: text.txt: no such file"])


@pytest.fixture
def unhurried(monkeypatch):
    """A start limit that does not pass before one of two ranks waits for the other alone."""
    limits = {}

    def join_by(attempt):
        is_waiting = attempt._started == {0, 1} and attempt._joined == {0}
        return limits[attempt] if is_waiting else float("inf")

    monkeypatch.setattr(
        launch.Attempt, "_join_by", property(join_by, limits.__setitem__), raising=False
    )


@pytest.mark.usefixtures("unhurried")
def test_ranks_that_do_not_start_or_connect(launched):
    code, _, lines = launched("train", "train", interpreter="/no/python")
    assert code == 2
    assert lines[-1].endswith("did not start; " + ADVICE.format(python="/no/python"))
    code, _, lines = launched("train", "wait in MLX", options=["--start-limit", "2"])
    assert (code, len(lines)) == (2, 1)
    assert lines[0] == f"error: rank 1 on 127.0.0.1: not connected after 2 s; {CONNECT}"


def test_a_host_that_ssh_cannot_reach_is_named(tmp_path, monkeypatch, capsys):
    hosts = [{"ssh": name, "ips": ["127.0.0.1"]} for name in ("127.0.0.1", "desk9")]
    (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    out = tmp_path / "out"
    words = ["--hostfile", str(tmp_path / "hosts.json"), "--", "train", "--out", str(out)]
    assert main(["launch", *words]) == 2
    line = "error: rank 1 on desk9 did not start; see if `ssh desk9 true` works\n"
    assert capsys.readouterr().err == line
    assert not out.exists()


def test_ctrl_c_stops_all_ranks(launched):
    code, _, lines = launched("interrupt", "obey")
    assert (code, lines) == (130, ["interrupted at step 7"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert launched("wait in MLX, interrupt", "wait in MLX")[::2] == (130, [])


TRAIN = ["--", "train", "--out", "out"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "2"], "launch: expected -- and one of the commands train, eval"),
        (["-n", "2", "--", "app"], "launch: expected -- and one of the commands train, eval"),
        (TRAIN, "launch: give one of -n N and --hostfile FILE"),
        (["-n", "0", *TRAIN], "-n: expected 1 to 65535, got 0"),
        (["-n", "2", "--port", "70000", *TRAIN], "--port: expected 1 to 65535, got 70000"),
        (["-n", "2", "--limit", "0", *TRAIN], "--limit: expected 1 to 65535, got 0"),
        (["--hostfile", "{}", *TRAIN], "hosts.json: No such file or directory"),
    ],
)
def test_wrong_usage(words, message, tmp_path, capsys):
    words = [word.format(tmp_path / "hosts.json") for word in words]
    assert main(["launch", *words]) == 2
    assert capsys.readouterr().err.removeprefix("error: ").rpartition("/")[2] == f"{message}\n"


def test_the_launched_command_is_checked_first(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", "-n", "2", *TRAIN, "--bad"])
    line = "error: unrecognized arguments: --bad; see gateloop train --help\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a hostfile"),
        ('{"hosts": 3}', "not a hostfile"),
        ('[{"ssh": "desk"}]', "not a hostfile ('ips')"),
        ("[]", "has no hosts"),
        ('[{"ssh": "-oProxyCommand=x", "ips": ["127.0.0.1"]}]', "'-oProxyCommand=x' is not the"),
        ('[{"ssh": "desk\\u001b[2J", "ips": ["127.0.0.1"]}]', r"'desk\x1b[2J' is not the name"),
        ('{"hosts": [{"ssh": "a", "ips": ["127.0.0.1"]}], "backend": "mpi"}', "backend: expected"),
        ('[{"ssh": "desk", "ips": []}]', "'desk' has no address in its ips"),
        (
            '[{"ssh": "desk", "ips": ["nowhere.invalid"]}]',
            "'desk': unknown address 'nowhere.invalid'",
        ),
    ],
)
def test_bad_hostfiles(tmp_path, capsys, text, message):
    path = tmp_path / "hosts.json"
    path.write_text(text)
    assert main(["launch", "--hostfile", str(path), *TRAIN]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}: {message}")
    assert len(said.splitlines()) == 1


def test_a_hostfile_reaches_mlx_launch_whole(tmp_path):
    content = {"backend": "jaccl", "envs": ["MLX_METAL_FAST_SYNCH=1"]}
    hosts = [{"ssh": f"desk{i}", "ips": ["127.0.0.1"], "rdma": [None, "en2"]} for i in range(2)]
    (tmp_path / "hosts.json").write_text(json.dumps(content | {"hosts": hosts}))
    found = read_hostfile(tmp_path / "hosts.json")
    assert json.loads(json.dumps(asdict(found))) == content | {"hosts": hosts}
    assert not found.is_here
    assert local_hosts(2).is_here


def test_wrong_input_of_one_rank_ends_the_others_soon(launched):
    line = "error: text.txt: no such file"
    code, _, lines = launched("obey", [2, line], options=["--limit", "60"])
    assert (code, lines) == (2, ["error: rank 1 on 127.0.0.1: text.txt: no such file"])


def test_a_port_in_use():
    first = free_ports(2)
    require_free("127.0.0.1", first)
    with pytest.raises(InputError, match=r"192\.0\.2\.1 port \d+: .*; give another --port"):
        require_free("192.0.2.1", first)  # an address of no machine
    code = f"import socket; s = socket.create_server(('127.0.0.1', {first}), reuse_port=True); "
    code += "from mlx_gateloop.distributed.hosts import require_free; "
    code += f"require_free('127.0.0.1', {first})"
    child = run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"127.0.0.1 port {first}: Address already in use" in child.stderr


def test_a_launch_of_one_rank_has_an_empty_hostfile(tmp_path):
    (tmp_path / "hosts.json").write_text("\n")
    code = "from mlx_gateloop.distributed.rank import _check_address; _check_address(0)"
    assert python(code, MLX_HOSTFILE=str(tmp_path / "hosts.json")) == ""


def test_a_launcher_with_nothing_to_read_waits():
    reader, writer = os.pipe()
    began = time.monotonic()
    assert wait_for_output([reader], [writer], [], 1.0) == ([], [writer], [])
    assert time.monotonic() - began > 0.05
    os.write(writer, b"text")
    assert wait_for_output([reader], [writer], [], 1.0) == ([reader], [writer], [])
    os.close(reader)
    os.close(writer)


def test_events_between_lines(capfd):
    send("key", rank=1, joined=True)
    send("other", rank=2)
    whole = b"a bar\r 50%" + capfd.readouterr().out.encode() + b"\xff[ring] text\n[ring] noise\nend"
    for size in (1, 7, 1000):
        stream, text, events = Stream("key"), b"", []
        for start in range(0, len(whole), size):
            shown, found = stream.read(whole[start : start + size])
            text, events = text + shown, events + found
        assert text == b"a bar\r 50%\xff[ring] text\nend"
        assert events == [{"key": "key", "rank": 1, "joined": True}]
