"""The model thread's own CPU time: pauses are left out, waiting costs nothing."""

import threading
import time

from services.inference.cpu_time import CpuOverhead


def burn(seconds: float) -> None:
    """Compute until this thread used so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_pauses_and_waits_are_not_counted() -> None:
    overhead = CpuOverhead()
    overhead.take_ms()
    burn(0.01)
    with overhead.paused():
        burn(0.05)
    threading.Event().wait(0.05)
    taken_ms = overhead.take_ms()
    assert 10 <= taken_ms < 40
    assert 0 <= overhead.take_ms() < 10


def test_a_pause_that_fails_is_left_out_too() -> None:
    overhead = CpuOverhead()
    overhead.take_ms()
    try:
        with overhead.paused():
            burn(0.03)
            raise ValueError
    except ValueError:
        pass
    assert overhead.take_ms() < 25
