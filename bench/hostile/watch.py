"""What the processes of a mesh hold (memory, tasks, sessions), and how late their event loops
are."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from bench.harness.local_mesh import LocalMesh
from outrider.cli.local.state import running_mesh
from outrider.telemetry import names

SETTLE_S: Final = 30.0
"""Time to release what is still ending: connections of clients that vanished, and their chats."""
CALM_LAG_MS: Final = 30.0
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
    lag_ms_max: float
    """Longest lag of its event loop within the last seconds (names.LOOP_LAG_MAX)."""
    blocked_ms_max: float
    """Longest time that the loop's own thread computed at a stretch (names.LOOP_BLOCKED_MAX)."""
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
        rss_mb = sum(map(_rss_mb, _family(pid)))
    except OSError:
        return None
    held = dict.fromkeys(_HELD.values(), 0)
    late: dict[str, float] = {names.LOOP_LAG_MAX: 0.0, names.LOOP_BLOCKED_MAX: 0.0}
    for family in text_string_to_metric_families(text):
        if family.name in _HELD:
            held[_HELD[family.name]] += int(sum(sample.value for sample in family.samples))
        elif family.name in late:
            late[family.name] = family.samples[0].value * 1e3
    late_ms, blocked_ms = late[names.LOOP_LAG_MAX], late[names.LOOP_BLOCKED_MAX]
    return Reading(pid, rss_mb, late_ms, blocked_ms, held)


def _family(pid: int) -> list[int]:
    """A process and those it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(int(child) for child in children)]


async def busy_cores(mesh: LocalMesh, seconds: float) -> dict[str, float]:
    """By process, its drafter or workers counted with it: how many cores it used, on average, in
    the time that is measured now."""
    state = running_mesh(mesh.state_dir)
    rows = [] if state is None else state.services
    before = {row["name"]: _cpu_s(row["pid"]) for row in rows}
    await asyncio.sleep(seconds)
    return {row["name"]: (_cpu_s(row["pid"]) - before[row["name"]]) / seconds for row in rows}


def _cpu_s(pid: int) -> float:
    try:
        stats = [Path(f"/proc/{one}/stat").read_text("ascii") for one in _family(pid)]
    except OSError:
        return 0.0
    # Fields 14 and 15, counted behind the name, which may have anything in it (proc(5)).
    used = (stat.rpartition(")")[2].split()[11:13] for stat in stats)
    return sum(int(user) + int(system) for user, system in used) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class MeshWatch:
    """Reads all processes every half a second and keeps the largest of what it saw."""

    def __init__(self, mesh: LocalMesh, before: Mapping[str, Reading]) -> None:
        self._mesh = mesh
        self._before = before
        self._began_at = time.monotonic()
        self.growth_mb: dict[str, float] = dict.fromkeys(before, 0.0)
        self.lag_ms_max: dict[str, float] = dict.fromkeys(before, 0.0)
        self.blocked_ms_max: dict[str, float] = dict.fromkeys(before, 0.0)
        self.lost: set[str] = set()
        """Processes that ended, or were not there to answer."""

    async def go_on(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_POLL_S)

    async def look(self) -> dict[str, Reading]:
        """Read once, and note it."""
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
                self.lag_ms_max[name] = max(self.lag_ms_max[name], now.lag_ms_max)
                self.blocked_ms_max[name] = max(self.blocked_ms_max[name], now.blocked_ms_max)
        return readings


async def calm_down(mesh: LocalMesh) -> None:
    """Return once no loop is late any more, or after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        readings = await read(mesh)
        if all(reading.lag_ms_max < CALM_LAG_MS for reading in readings.values()):
            return
        await asyncio.sleep(_POLL_S)


async def left_over(mesh: LocalMesh, before: Mapping[str, Reading]) -> dict[str, int]:
    """What processes still hold beyond `before`, by kind, after SETTLE_S to release it."""
    end = time.monotonic() + SETTLE_S
    while True:
        now, left = await read(mesh), dict[str, int]()
        for name in before.keys() & now.keys():
            for kind, count in now[name].held.items():
                more = count - before[name].held[kind]
                if more > 0:
                    left[f"{name} {kind}"] = more
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(_POLL_S)
