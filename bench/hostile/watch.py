"""What the processes of a mesh hold: memory, tasks, sessions; and how long their event loops
compute at a stretch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.harness.local_mesh import LocalMesh
from outrider.cli.local.state import running_mesh
from outrider.telemetry import names

SETTLE_S: Final = 30.0
"""Time to release what is still ending: connections of clients that vanished, and their chats."""
CALM_MS: Final = 30.0
_POLL_S: Final = 0.5
_HELD: Final = {
    names.PROCESS_TASKS: "tasks",
    names.PROCESS_FILES: "files",
    "outrider_edge_open_chats": "sessions",
    "outrider_edge_open_connections": "connections",
    "outrider_edge_detached_chats": "sessions",
    "outrider_edge_drafter_sessions": "sessions",
    "outrider_router_sessions": "sessions",
    "outrider_sessions_running": "sessions",
    "outrider_sessions_queued": "sessions",
    "outrider_sessions_paused": "sessions",
}
"""Gauges that have to be back at their earlier values once all attacks' connections have ended."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One process at one moment."""

    pid: int
    rss_mb: float
    blocked_ms: float
    """Longest time within the last seconds that the loop's own thread computed at a stretch
    (names.LOOP_BLOCKED_MAX)."""
    held: Mapping[str, int]
    """By kind: tasks, files, sessions, connections."""


async def read(mesh: LocalMesh) -> dict[str, Reading]:
    """Every process by name, its drafter or workers counted with it; a process that cannot be
    asked is left out."""
    state = running_mesh(mesh.state_dir)
    rows = [] if state is None else state.services
    readings = await asyncio.gather(
        *(asyncio.to_thread(_read, row["pid"], row["admin_port"]) for row in rows)
    )
    found = zip(rows, readings, strict=True)
    return {row["name"]: reading for row, reading in found if reading is not None}


def _read(pid: int, admin_port: int) -> Reading | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        rss_mb = sum(map(_rss_mb, [pid, *_children(pid)]))
    except OSError:
        return None
    held, blocked_ms = dict.fromkeys(_HELD.values(), 0), 0.0
    for family in text_string_to_metric_families(text):
        if family.name in _HELD:
            held[_HELD[family.name]] += int(sum(sample.value for sample in family.samples))
        elif family.name == names.LOOP_BLOCKED_MAX:
            blocked_ms = family.samples[0].value * 1e3
    return Reading(pid, rss_mb, blocked_ms, held)


async def busy_share(mesh: LocalMesh, seconds: float) -> float:
    """Processor time within the next seconds of the process that computes most, its children
    counted with it, as a share of one core."""
    before = _cpu_s(mesh)
    await asyncio.sleep(seconds)
    after = _cpu_s(mesh)
    return max((after[pid] - before[pid] for pid in before.keys() & after.keys()), default=0) / (
        seconds
    )


def _cpu_s(mesh: LocalMesh) -> dict[int, float]:
    state = running_mesh(mesh.state_dir)
    found = dict[int, float]()
    for row in [] if state is None else state.services:
        pid = row["pid"]
        with contextlib.suppress(OSError):
            found[pid] = sum(map(_own_cpu_s, [pid, *_children(pid)]))
    return found


def _own_cpu_s(pid: int) -> float:
    """proc(5): utime and stime, the 14th and 15th field."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [*map(int, text.split())]


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class MeshWatch:
    """The most of what was seen of each process since `before`, read every half a second."""

    def __init__(self, mesh: LocalMesh, before: Mapping[str, Reading]) -> None:
        self._mesh = mesh
        self._before = before
        self._began_at = time.monotonic()
        self.growth_mb = dict.fromkeys(before, 0.0)
        self.blocked_ms = dict.fromkeys(before, 0.0)
        self.lost: set[str] = set()
        """Processes that ended, or were not there to answer."""

    async def _go_on(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_POLL_S)

    async def _look(self) -> None:
        readings = await read(self._mesh)
        # In its first seconds the gauge still covers the time before this watch began.
        is_ours = time.monotonic() - self._began_at > names.LOOP_LAG_MAX_WINDOW_S
        for name, before in self._before.items():
            now = readings.get(name)
            if now is None or now.pid != before.pid:
                self.lost.add(name)
                continue
            self.growth_mb[name] = max(self.growth_mb[name], now.rss_mb - before.rss_mb)
            if is_ours:
                self.blocked_ms[name] = max(self.blocked_ms[name], now.blocked_ms)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """For as long as the context lasts, and once more at its end."""
        task = asyncio.create_task(self._go_on())
        try:
            yield
            await self._look()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def calm_down(mesh: LocalMesh) -> None:
    """Return once no loop computes for long any more, or after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while any(it.blocked_ms > CALM_MS for it in (await read(mesh)).values()):
        if time.monotonic() > end:
            return
        await asyncio.sleep(_POLL_S)


async def left_over(mesh: LocalMesh, before: Mapping[str, Reading]) -> dict[str, int]:
    """What processes still hold beyond `before`, by kind, after SETTLE_S to release it."""
    end = time.monotonic() + SETTLE_S
    while True:
        now, left = await read(mesh), dict[str, int]()
        for name in before.keys() & now.keys():
            for kind, count in now[name].held.items():
                if count > before[name].held[kind]:
                    left[f"{name} {kind}"] = count - before[name].held[kind]
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(_POLL_S)
