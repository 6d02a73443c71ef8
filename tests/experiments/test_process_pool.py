import os
import re
import signal
import threading
import time
from functools import partial

import pytest
from helpers.errors import refusal

from mlx_gateloop.experiments.process_pool import run_processes
from mlx_gateloop.io.interrupt import Interrupted

WRITE = "import os, pathlib; pathlib.Path({!r}).write_text(os.environ['OPENBLAS_NUM_THREADS'])\n"
WAIT = "import time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
STOP = """
from mlx_gateloop.io.interrupt import interrupt_flag
with interrupt_flag() as stop:
    pathlib.Path({!r}).touch()
    stop.wait(120)
pathlib.Path({!r}).touch()
"""


def code(text, *paths):
    return partial(exec, text.format(*map(str, paths)), {})


@pytest.mark.slow
def test_two_run_at_a_time_with_one_thread_and_failures_leave_them_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    a, b, logs = (tmp_path / name for name in ("a", "b", "logs"))
    calls = {"one": code(WRITE + WAIT + "print('seen')", a, b), "other": code(WRITE + WAIT, b, a)}
    calls["wrong"] = code("raise ValueError('no such thing')")
    calls["dead"] = code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    line = refusal(run_processes, calls, 2, logs)
    assert re.search(r"2 of 4 failed: .*no such thing.*; the same command with --resume", line)
    assert "dead (ended by SIGKILL)" in line
    assert a.read_text() == b.read_text() == "1"
    assert (logs / "one.log").read_text() == "seen\n"


def test_ctrl_c_is_handed_on_and_all_are_waited_for(tmp_path, capfd):
    ready, saved, never = (tmp_path / name for name in ("ready", "saved", "never"))

    def press():
        deadline = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    calls = {"one": code("import pathlib" + STOP, ready, saved), "next": code(WRITE, never)}
    with pytest.raises(Interrupted):
        run_processes(calls, 1, tmp_path)
    thread.join()
    assert saved.exists()
    assert not never.exists()
    assert capfd.readouterr().err == f"{tmp_path.name}/one begins, 1 after it\n"
