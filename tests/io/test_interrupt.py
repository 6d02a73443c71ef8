"""Signals as a request to stop."""

import signal

import pytest

from mlx_gateloop.io.interrupt import Interrupted, interrupt_flag


def test_a_signal_that_the_process_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        with interrupt_flag() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_set()
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("is_pressed", "kind"), [(True, Interrupted), (False, RuntimeError)])
def test_a_compiler_that_ctrl_c_ended_is_no_fault(is_pressed, kind):
    def run():
        with interrupt_flag():
            if is_pressed:
                signal.raise_signal(signal.SIGINT)
            raise RuntimeError("Failed to compile function")

    with pytest.raises(kind):
        run()
