"""Replica processes as `outrider up` starts them: when they are ready, and what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness.mesh import Service, mesh

KV_BYTES: Final = 64 << 20
"""Of the pool, which is touched only as it fills: memory is read with next to nothing in it."""
_PREPARED: Final = ("call_sizes_prepared", "call_size_not_prepared")
_LIMIT_S: Final = 900.0
_POLL_S: Final = 0.1


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


@contextlib.asynccontextmanager
async def replica_process(
    model: str, settings: Mapping[str, object] | None = None
) -> AsyncIterator[Service]:
    """An inference service, once it serves."""
    values = {"replica": "one", "model": model, "kv_bytes": KV_BYTES, "log_level": "info"}
    async with mesh("models") as made:
        service = made.service(
            "replica", "inference", {**values, **(settings or {})}, region="here"
        )
        await made.start(service)
        yield service


async def own_models(replica: Service) -> list[int]:
    """Numbers of rows that have models of their own, once all are compiled: as it logs them.
    Raises TimeoutError."""
    async with asyncio.timeout(_LIMIT_S):
        while True:
            seen = {event["event"]: event for event in _events(replica.log)}
            chosen: list[int] | None = seen.get("call_sizes_chosen", {}).get("num_rows")
            if chosen == [] or (chosen and not seen.keys().isdisjoint(_PREPARED)):
                return chosen
            await asyncio.sleep(_POLL_S)


def _events(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text("utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [event for event in found if isinstance(event, dict) and "event" in event]


def _kilobytes(text: str) -> dict[str, int]:
    """Of the lines of a file of /proc that give a number of kB."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
