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

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.process_pool import run_processes
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
    run_processes(calls, 2, tmp_path / "logs")
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_two_at_a_time_share_the_processors(tmp_path):
    pairs = [[tmp_path / name for name in names] for names in ("ab", "cd")]
    calls = {}
    for one, other in pairs:
        calls |= {one.name: note_processors(one, other), other.name: note_processors(other, one)}
    run_processes(calls, 2, tmp_path / "logs")
    every = {str(number) for number in os.sched_getaffinity(0)}
    for one, other in pairs:
        assert processors(one) | processors(other) == every
        assert not processors(one) & processors(other) or len(every) == 1
    run_processes({"alone": note_processors(tmp_path / "e", tmp_path / "a")}, 2, tmp_path / "logs")
    assert processors(tmp_path / "e") == every


@pytest.mark.slow
def test_one_that_fails_leaves_the_others_alone(tmp_path):
    calls = {"wrong": fail, "dead": crash, "good": partial(write, tmp_path / "a")}
    words = r"2 of 3 failed: .*no such thing; take another.*; the same command with --resume"
    with pytest.raises(InputError, match=words) as caught:
        run_processes(calls, 1, tmp_path / "logs")
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
        run_processes(calls, 1, tmp_path / "logs")
    assert saved.exists()
    assert not never.exists()


INTERRUPTED_AT_START = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from mlx_gateloop.experiments import process_pool as module
from mlx_gateloop.train.interrupt import Interrupted

folder = Path(sys.argv[1])
original = module._start

def start(*arguments):
    process = original(*arguments)
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
        module.run_processes({"one": partial(Path.touch, folder / "made")}, 1, folder)
    except Interrupted:
        print("interrupted")
"""


@pytest.mark.slow
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
