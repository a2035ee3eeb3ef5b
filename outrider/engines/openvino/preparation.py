"""Getting models for fixed numbers of rows ready while the engine serves without them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

import structlog

from outrider.engines.page_collapse import collapse_pages
from outrider.errors import EngineError

log = structlog.get_logger()

_NICENESS = 10
"""Least niceness of the thread: calls that serve sessions come first."""


class Preparation:
    """A thread that calls `prepare` for one size after the other, and then `finish`. Without its
    results calls are slower but correct, so a failure is logged and ends the thread."""

    def __init__(
        self, sizes: Iterable[int], prepare: Callable[[int], None], finish: Callable[[], None]
    ) -> None:
        self._stopping = threading.Event()
        # Arguments, not attributes: what `prepare` holds is free when the thread has ended.
        self._thread = threading.Thread(
            target=self._run, args=(list(sizes), prepare, finish), name="preparation", daemon=True
        )
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """Whether stop() was called."""
        return self._stopping.is_set()

    def wait(self) -> None:
        """Until all sizes are ready, or one failed."""
        self._thread.join()

    def stop(self) -> None:
        """After the size in work."""
        self._stopping.set()
        self._thread.join()

    def _run(
        self, sizes: list[int], prepare: Callable[[int], None], finish: Callable[[], None]
    ) -> None:
        # Linux alone has priorities of threads; elsewhere this would be the process's.
        if hasattr(os, "sched_getaffinity"):
            thread = threading.get_native_id()
            # Only root may make a process less nice than it is.
            niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        try:
            self._prepare(sizes, prepare)
        finally:
            finish()

    def _prepare(self, sizes: list[int], prepare: Callable[[int], None]) -> None:
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
