import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mlx_gateloop.distributed.hosts import LOCAL
from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.side_by_side import side_by_side
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag

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


NOTE_PROCESSORS = """
import os, time
from pathlib import Path
mine, other = Path("{mine}"), Path("{other}")
mine.with_suffix(".here").touch()
deadline = time.monotonic() + 120
while not other.with_suffix(".here").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
mine.write_text(" ".join(map(str, os.sched_getaffinity(0))))
"""


def note_processors(mine: Path, other: Path) -> partial:
    """A call that waits for another and writes the processors that it may use."""
    return partial(exec, NOTE_PROCESSORS.format(mine=mine, other=other), {})


def processors(path: Path) -> set[str]:
    return set(path.read_text().split())


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
@pytest.mark.parametrize("host", [LOCAL, "desk"])
def test_two_at_a_time_share_the_processors(tmp_path, ssh, host):
    pairs = [[tmp_path / name for name in names] for names in ("ab", "cd")]
    calls = {}
    for one, other in pairs:
        calls |= {one.name: note_processors(one, other), other.name: note_processors(other, one)}
    side_by_side(calls, 2, tmp_path / "logs", [host])
    every = {str(number) for number in os.sched_getaffinity(0)}
    for one, other in pairs:
        assert processors(one) | processors(other) == every
        assert not processors(one) & processors(other) or len(every) == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_one_alone_has_all_processors(tmp_path):
    (tmp_path / "b.here").touch()
    side_by_side({"one": note_processors(tmp_path / "a", tmp_path / "b")}, 2, tmp_path / "logs")
    assert processors(tmp_path / "a") == {str(number) for number in os.sched_getaffinity(0)}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_one_on_each_machine_has_all_of_its_processors(tmp_path, ssh):
    one, other = tmp_path / "a", tmp_path / "b"
    calls = {"one": note_processors(one, other), "other": note_processors(other, one)}
    side_by_side(calls, 2, tmp_path / "logs", [LOCAL, "desk"])
    every = {str(number) for number in os.sched_getaffinity(0)}
    assert processors(one) == processors(other) == every


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


INTERRUPTED_AT_START = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from mlx_gateloop.experiments import side_by_side as module
from mlx_gateloop.train.interrupt import Interrupted

folder = Path(sys.argv[1])
original = module._start

def start(call, log):
    process = original(call, log)
    while not (folder / "imports").exists():
        time.sleep(0.01)
    os.killpg(os.getpgrp(), signal.SIGINT)  # as the terminal does
    return process

if __name__ == "__mp_main__":  # the new process, before it makes the call
    (folder / "imports").touch()
    time.sleep(60)
else:
    module._start = start
    try:
        module.side_by_side({"one": partial(Path.touch, folder / "made")}, 1, folder)
    except Interrupted:
        print("interrupted")
"""


def test_ctrl_c_while_a_process_starts_is_silent(tmp_path):
    (script := tmp_path / "script.py").write_text(INTERRUPTED_AT_START)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.returncode) == ("interrupted\n", 0)
    assert done.stderr == f"{tmp_path.name}/one begins, 0 after it\n"
    assert not (tmp_path / "made").exists()


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
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag
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
    assert "logs/a: ssh has lost dead, which gets no more" in capsys.readouterr().err


def test_no_machine_is_left(tmp_path, ssh):
    with pytest.raises(InputError, match=r"1 of 1 failed: a \(no machine is left\)"):
        side_by_side({"a": partial(Path.touch, tmp_path / "a")}, 1, tmp_path / "logs", ["dead"])


def test_ctrl_c_reaches_the_machines(tmp_path, ssh):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    call = partial(exec, STOPPED.format(ready=ready, saved=saved), {})
    with interrupted_when(ready), pytest.raises(Interrupted):
        side_by_side({"a": call}, 1, tmp_path / "logs", ["desk"])
    assert saved.exists()
