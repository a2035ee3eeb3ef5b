"""Getting models for fixed numbers of rows ready while the engine serves without them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

import structlog

from outrider.engines.page_collapse import collapse_pages
from outrider.errors import EngineError

log = structlog.get_logger()

_NICENESS: Final = 10
"""How much nicer than its process the thread is: calls that serve sessions come first."""
_MAX_NICENESS: Final = 19
QUIET_S: Final = 3.0
"""The thread begins once no call was made for so long: what starts beside this process, such as
the rest of a mesh, needs the cores first."""
LATEST_S: Final = 15.0
"""It begins after so long in any case."""


class Preparation:
    """A thread that calls `prepare` for one size after the other, and then `finish`. Without its
    results calls are slower but correct, so a failure is logged and ends the thread."""

    def __init__(
        self, sizes: Iterable[int], prepare: Callable[[int], None], finish: Callable[[], None]
    ) -> None:
        self._stopping = threading.Event()
        self._begin = threading.Event()
        """Set when there is nothing to wait for."""
        self._called_at = monotonic()
        # Arguments, not attributes: what `prepare` holds is free when the thread has ended.
        self._thread = threading.Thread(
            target=self._run, args=(list(sizes), prepare, finish), name="preparation", daemon=True
        )
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """Whether stop() was called."""
        return self._stopping.is_set()

    def called(self) -> None:
        """A call was made: what begins, begins later."""
        self._called_at = monotonic()

    def wait(self) -> None:
        """Until all sizes are ready, or one failed; begins at once."""
        self._begin.set()
        self._thread.join()

    def stop(self) -> None:
        """After the size in work."""
        self._stopping.set()
        self._begin.set()
        self._thread.join()

    def _run(
        self, sizes: list[int], prepare: Callable[[int], None], finish: Callable[[], None]
    ) -> None:
        # Linux alone has priorities of threads; elsewhere this would be the process's.
        if hasattr(os, "sched_getaffinity"):
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(niceness, _MAX_NICENESS))
        try:
            self._wait_for_quiet()
            self._prepare(sizes, prepare)
        finally:
            finish()

    def _wait_for_quiet(self) -> None:
        latest = monotonic() + LATEST_S
        while (left_s := min(self._called_at + QUIET_S, latest) - monotonic()) > 0:
            if self._begin.wait(left_s):
                return

    def _prepare(self, sizes: list[int], prepare: Callable[[int], None]) -> None:
        if not self._stopping.is_set():
            collapse_pages()
        for size in sizes:
            if self._stopping.is_set():
                return
            try:
                prepare(size)
            except (EngineError, RuntimeError) as error:
                log.warning("call_size_not_prepared", num_rows=size, error=str(error))
                return
        if sizes:
            collapse_pages()
            log.info("call_sizes_prepared", num_rows=sizes)
