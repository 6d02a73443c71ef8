import os
import signal
import threading
import time
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


def test_ctrl_c_is_handed_on_and_all_are_waited_for(tmp_path):
    ready, saved, never = (tmp_path / name for name in ("ready", "saved", "never"))
    calls = {"one": partial(until_asked_to_stop, ready, saved), "next": partial(write, never)}

    def press() -> None:
        wait_for(ready)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(Interrupted):
        side_by_side(calls, 1, tmp_path / "logs")
    thread.join()
    assert saved.exists()
    assert not never.exists()
