"""Replica processes as `outrider up` starts them: when they are ready, and what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.processes import child
from outrider.children import PipedProcess
from outrider.engines.huge_pages import with_huge_pages

READY_TIMEOUT_S: Final = 900.0
"""Of a cold start, with the conversion of the largest model beside other work."""
KV_BYTES: Final = 64 << 20
"""Of the pool, which is touched only as it fills: memory is read with next to nothing in it."""
_LINES_KEPT: Final = 20
_PREPARED: Final = ("call_sizes_prepared", "call_size_not_prepared")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process holds, in MB (10^6 bytes)."""

    resident: float
    proportional: float
    """Pages that several processes share count for each in part."""
    anonymous: float
    """Not of files: the kernel cannot drop it."""
    peak: float
    """The most that was resident at once so far."""

    @classmethod
    def of(cls, pid: int) -> Memory:
        """Raises OSError if there is no such process."""
        rollup = _kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
        status = _kilobytes(Path(f"/proc/{pid}/status").read_text())
        names = (rollup["Rss"], rollup["Pss"], rollup["Anonymous"], status["VmHWM"])
        return cls(*(round(kib * 1024 / 1e6, 1) for kib in names))


class ReplicaProcess:
    """A running inference service, by what it logs."""

    def __init__(self, process: PipedProcess, began_at: float) -> None:
        self._process = process
        self._began_at = began_at
        self._last: deque[str] = deque(maxlen=_LINES_KEPT)
        self._seen: dict[str, tuple[float, dict[str, Any]]] = {}
        self._news = asyncio.Condition()
        self._ended = False

    async def read(self) -> None:
        """Until it ends."""
        async for line in self._process.stdout:
            self._last.append(line.decode(errors="replace").rstrip())
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                async with self._news:
                    self._seen[event["event"]] = (time.monotonic() - self._began_at, event)
                    self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()

    async def event(self, *names: str) -> tuple[float, dict[str, Any]]:
        """Seconds from the start of the process to the first of these events, and its fields.
        Raises RuntimeError with the last lines of the log if the process ended without one."""
        async with asyncio.timeout(READY_TIMEOUT_S), self._news:
            await self._news.wait_for(
                lambda: self._ended or not self._seen.keys().isdisjoint(names)
            )
        found = [self._seen[name] for name in names if name in self._seen]
        if not found:
            raise RuntimeError("a replica ended:\n" + "\n".join(self._last))
        return found[0]

    async def ready(self) -> float:
        """Seconds from the start of the process until it serves."""
        return (await self.event("replica_ready"))[0]

    async def address(self) -> str:
        """Of its gRPC listener."""
        return f"127.0.0.1:{(await self.event('replica_ready'))[1]['port']}"

    async def copies(self) -> list[int]:
        """Numbers of rows that have models of their own, once all are compiled."""
        chosen: list[int] = (await self.event("call_sizes_chosen"))[1]["num_rows"]
        if chosen:
            await self.event(*_PREPARED)
        return chosen

    def memory(self) -> Memory:
        """Now."""
        return Memory.of(self._process.pid)


@contextlib.asynccontextmanager
async def replica_process(
    model: str, settings: Mapping[str, object] | None = None
) -> AsyncIterator[ReplicaProcess]:
    """Start an inference service, which is not ready yet."""
    given = {
        "port": 0,
        "model": model,
        "kv_bytes": KV_BYTES,
        "log_level": "info",
        **(settings or {}),
    }
    own = {f"OUTRIDER_INFERENCE_{name.upper()}": str(value) for name, value in given.items()}
    environ = with_huge_pages(os.environ) | own
    began_at = time.monotonic()
    command = (sys.executable, "-m", "outrider.cli.main", "serve", "inference")
    async with child(*command, environ=environ, merged=True) as process:
        replica = ReplicaProcess(process, began_at)
        reading = asyncio.create_task(replica.read())
        try:
            yield replica
        finally:
            if process.returncode is None:
                process.terminate()
            await reading


def _kilobytes(text: str) -> dict[str, int]:
    """Of the lines of a file of /proc that give a number of kB."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
