import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.side_by_side import side_by_side
from mlx_gateloop.interrupt import Interrupted, interrupt_flag

PATIENCE = 120  # seconds


def write(path: Path) -> None:
    path.write_text(os.environ["OPENBLAS_NUM_THREADS"])
    print("written")


def fail() -> None:
    raise InputError("no such thing; take another")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


def meet(mine: Path, other: Path) -> None:
    """Run only beside another call."""
    mine.touch()
    wait_for(other)


def until_asked_to_stop(ready: Path, saved: Path) -> None:
    with interrupt_flag() as stop:
        ready.touch()
        stop.wait(PATIENCE)
    saved.touch()
    raise Interrupted("interrupted, saved")


def test_two_run_at_a_time_each_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    a, b, c = (tmp_path / name for name in "abc")
    calls = {"one": partial(meet, a, b), "other": partial(meet, b, a), "last": partial(write, c)}
    side_by_side(calls, 2, tmp_path / "logs")
    assert c.read_text() == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    assert (tmp_path / "logs" / "last.log").read_text() == "written\n"


def test_one_that_fails_leaves_the_others_alone(tmp_path):
    calls = {"wrong": fail, "dead": crash, "good": partial(write, tmp_path / "a")}
    words = r"2 of 3 failed: .*no such thing; take another.*; the same command with --resume"
    with pytest.raises(InputError, match=words) as caught:
        side_by_side(calls, 1, tmp_path / "logs")
    assert "dead (ended by SIGKILL)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "a").exists()


@contextmanager
def interrupted_when(ready):
    """Press Ctrl-C when there is a file."""

    def press():
        wait_for(ready)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield
    thread.join()


def test_ctrl_c_is_handed_on_and_all_are_waited_for(tmp_path):
    ready, saved, never = (tmp_path / name for name in ("ready", "saved", "never"))
    calls = {"one": partial(until_asked_to_stop, ready, saved), "next": partial(write, never)}
    with interrupted_when(ready), pytest.raises(Interrupted):
        side_by_side(calls, 1, tmp_path / "logs")
    assert saved.exists()
    assert not never.exists()


SSH = """#!{python} -SE
import os, shlex, sys
host, command = sys.argv[sys.argv.index("--") + 1:]
open("{folder}/" + host, "a").write("1")
if host == "dead":
    sys.exit(255)
words = shlex.split(command)
os.execvp(words[0], words)
"""


STOPPED = """
from pathlib import Path
from mlx_gateloop.interrupt import Interrupted, interrupt_flag
with interrupt_flag() as stop:
    Path("{ready}").touch()
    stop.wait(120)
Path("{saved}").touch()
raise Interrupted("interrupted, saved")
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A stand-in for ssh: all machines are this one, but for `dead`. Returns a folder of calls."""
    folder = tmp_path / "reached"
    for directory in (folder, tmp_path / "bin"):
        directory.mkdir()
    script = tmp_path / "bin" / "ssh"
    script.write_text(SSH.format(python=sys.executable, folder=folder))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_machines_share_the_calls_and_a_dead_one_loses_its_own_to_others(tmp_path, ssh, capsys):
    calls = {name: partial(Path.touch, tmp_path / name) for name in "abc"}
    calls["crash"] = partial(os._exit, 3)
    with pytest.raises(InputError, match=r"^1 of 4 failed: crash \(exit code 3\); the same"):
        side_by_side(calls, 1, tmp_path / "logs", ["dead", "desk"])
    assert {path.name for path in tmp_path.iterdir()} >= {*"abc"}
    assert (ssh / "dead").read_text() == "1"
    assert len((ssh / "desk").read_text()) == 4
    assert "a: ssh has lost dead, which gets no more" in capsys.readouterr().err


def test_no_machine_is_left(tmp_path, ssh):
    with pytest.raises(InputError, match=r"1 of 1 failed: a \(no machine is left\)"):
        side_by_side({"a": partial(Path.touch, tmp_path / "a")}, 1, tmp_path / "logs", ["dead"])


def test_ctrl_c_reaches_the_machines(tmp_path, ssh):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    call = partial(exec, STOPPED.format(ready=ready, saved=saved), {})
    with interrupted_when(ready), pytest.raises(Interrupted):
        side_by_side({"a": call}, 1, tmp_path / "logs", ["desk"])
    assert saved.exists()
