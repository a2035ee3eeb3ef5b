"""What the process itself holds: what leaks shows here first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from outrider.telemetry import names

_PROC = Path("/proc/self")


class ProcessCollector(Collector):
    """Tasks of one event loop, threads (native ones too) and open files of the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Counted when asked for, the asking included. From any thread."""
        num_tasks = len(asyncio.all_tasks(self._loop))
        yield GaugeMetricFamily(names.PROCESS_TASKS, "asyncio tasks", num_tasks)
        num_threads = _num_entries("task") or threading.active_count()
        yield GaugeMetricFamily(names.PROCESS_THREADS, "threads of the process", num_threads)
        if num_files := _num_entries("fd"):
            yield GaugeMetricFamily(names.PROCESS_FILES, "files and sockets open", num_files)


def _num_entries(folder: str) -> int:
    """0 where the system has no such folder: only Linux does."""
    try:
        return sum(1 for _ in (_PROC / folder).iterdir())
    except OSError:
        return 0
