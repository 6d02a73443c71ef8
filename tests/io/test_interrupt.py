"""Signals as a request to stop."""

import signal

import pytest

from mlx_gateloop.io.interrupt import NOT_COMPILED, Interrupted, interrupt_flag


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        with interrupt_flag() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_set()
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_only_a_compiler_that_ctrl_c_ended_is_no_fault():
    def run(text):
        with interrupt_flag():
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError(text)

    with pytest.raises(Interrupted):
        run(NOT_COMPILED[0])
    with pytest.raises(RuntimeError, match="another"):
        run("another")
