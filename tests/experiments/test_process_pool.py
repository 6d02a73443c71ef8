import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

from mlx_gateloop.errors import InputError
from mlx_gateloop.experiments.process_pool import run_processes
from mlx_gateloop.train.interrupt import Interrupted, interrupt_flag

PATIENCE = 120  # seconds


def write(path):
    path.write_text(os.environ["OPENBLAS_NUM_THREADS"])
    print("written")


def fail():
    raise InputError("no such thing; take another")


def crash():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(path):
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


def meet(mine, other):
    """Run only beside another call."""
    write(mine)
    wait_for(other)


def until_asked_to_stop(ready, saved):
    with interrupt_flag() as stop:
        ready.touch()
        stop.wait(PATIENCE)
    saved.touch()
    raise Interrupted("interrupted, saved")


def test_two_run_at_a_time_each_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    a, b = tmp_path / "a", tmp_path / "b"
    run_processes({"one": partial(meet, a, b), "other": partial(meet, b, a)}, 2, tmp_path / "logs")
    assert a.read_text() == b.read_text() == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    assert (tmp_path / "logs" / "one.log").read_text() == "written\n"


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
