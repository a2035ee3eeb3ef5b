"""What a thread computes besides the one call it exists for.

CPU time, not wall time: a machine that others use too then says nearly the same each time. Waiting
for Python's lock while the event loop holds it is no CPU time and is not counted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class CpuOverhead:
    """CPU time of the calling thread, the pauses left out. One thread uses it."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._paused_s = 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing while the context lasts."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self._paused_s += time.thread_time() - begin

    def take_ms(self) -> float:
        """Milliseconds since the last take; since the thread began for the first."""
        now = time.thread_time()
        taken_ms = (now - self._begun - self._paused_s) * 1e3
        self._begun, self._paused_s = now, 0.0
        return taken_ms
