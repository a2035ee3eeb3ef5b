"""One attack on the HTTP door: what it was answered, and what it did to processes and to those who
chat meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.harness.local_mesh import LocalMesh
from bench.hostile.bystander import Chatting, Waits
from bench.hostile.catalog import Attack
from bench.hostile.measuring import (
    MAX_BLOCKED_MS,
    MAX_GROWTH_MB,
    MAX_TAIL_RATIO,
    attacked_by,
    tail_ratio,
    watching,
)
from bench.hostile.target import Findings, Target
from bench.hostile.watch import MeshWatch, Reading, busy_cores, calm_down, left_over, read

MAX_BUSY_CORES: Final = 0.3
"""Of a process when nobody asks for anything: its timers, reports and metrics."""
_IDLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DoorResult:
    """What one attack did."""

    attack: Attack
    calm: Mapping[str, Waits]
    """By bystander: before it."""
    attacked: Mapping[str, Waits]
    """By bystander: during it."""
    growth_mb: Mapping[str, float]
    """By process: highest memory during the attack minus memory before it."""
    calm_lag_ms_max: float
    lag_ms_max: Mapping[str, float]
    """By process: longest event loop lag during the attack."""
    blocked_ms_max: Mapping[str, float]
    """By process: longest time that the loop's own thread computed at a stretch."""
    leaks: Mapping[str, int]
    """What was still held seconds after it, by process and kind."""
    busy_cores: Mapping[str, float]
    """By process: cores used seconds after it, when nobody asked for anything."""
    num_tracebacks: int
    """In the edge's log."""
    findings: Findings
    lost: tuple[str, ...] = ()
    """Processes that ended."""

    def tail_ratio(self, bystander: str) -> float | None:
        """Of a bystander's waits."""
        return tail_ratio(self.calm[bystander].gaps_ms, self.attacked[bystander].gaps_ms)

    @property
    def num_requests(self) -> int:
        """That were sent."""
        return self.findings.done.get("requests", 0)

    @property
    def answers(self) -> dict[str, int]:
        """How many requests or connections had which answer, or none."""
        return {
            what: times
            for what, times in sorted(self.findings.done.items())
            if what not in ("requests", "frames", "aims missed")
        }

    @property
    def misses(self) -> list[str]:
        """Every aim that was missed, a sentence each."""
        found = [*self.findings.broken, *(f"{name} ended" for name in self.lost)]
        found += [
            f"{name} grew by {mb:.0f} MB" for name, mb in self.growth_mb.items()
            if mb > MAX_GROWTH_MB
        ]  # fmt: skip
        found += [
            f"{name}'s loop was blocked for {ms:.0f} ms" for name, ms in self.blocked_ms_max.items()
            if ms > MAX_BLOCKED_MS
        ]  # fmt: skip
        found += [f"left behind: {count} {what}" for what, count in self.leaks.items()]
        found += [
            f"{name} used {cores:.1f} cores for nobody" for name, cores in self.busy_cores.items()
            if cores > MAX_BUSY_CORES
        ]  # fmt: skip
        if self.num_tracebacks:
            found.append(f"the edge logged {self.num_tracebacks} tracebacks")
        for name, waits in self.attacked.items():
            ratio = self.tail_ratio(name)
            if ratio is not None and ratio > MAX_TAIL_RATIO:
                found.append(f"the {name} bystander's p95 was {ratio:.1f} times that in calm")
            found += [f"the {name} bystander's chat failed: {it}" for it in waits.errors[:3]]
            if waits.inexact:
                found.append(f"{waits.inexact} replies of the {name} bystander were not exact")
        return found


async def measure(
    mesh: LocalMesh,
    target: Target,
    attack: Attack,
    bystanders: Mapping[str, Chatting],
    seconds: float,
) -> DoorResult:
    """`seconds` in calm, then the attack for as long as its requests take."""
    await calm_down(mesh)
    _noted(bystanders)
    calm_watch = MeshWatch(mesh, await read(mesh))
    async with watching(calm_watch):
        await asyncio.sleep(seconds)
    calm = _noted(bystanders)
    before, log_before = await read(mesh), _num_tracebacks(mesh)
    watch = MeshWatch(mesh, before)
    async with watching(watch):
        findings = await attacked_by(target, attack, seconds)
        attacked = _noted(bystanders)
    leaks, busy = await _after(mesh, before, bystanders)
    return DoorResult(
        attack, calm, attacked, watch.growth_mb, max(calm_watch.lag_ms_max.values()),
        watch.lag_ms_max, watch.blocked_ms_max, leaks, busy, _num_tracebacks(mesh) - log_before,
        findings, tuple(sorted(watch.lost)),
    )  # fmt: skip


def _noted(bystanders: Mapping[str, Chatting]) -> dict[str, Waits]:
    return {name: one.waits.clear() for name, one in bystanders.items()}


async def _after(
    mesh: LocalMesh, before: Mapping[str, Reading], bystanders: Mapping[str, Chatting]
) -> tuple[dict[str, int], dict[str, float]]:
    """What is left and what is still computed, while the bystanders are silent."""
    for one in bystanders.values():
        await one.pause()
    try:
        leaks = await left_over(mesh, before)
        return leaks, await busy_cores(mesh, _IDLE_S)
    finally:
        for one in bystanders.values():
            one.go_on()


def _num_tracebacks(mesh: LocalMesh) -> int:
    log = mesh.state_dir / "logs" / "edge.log"
    return log.read_bytes().count(b"Traceback (most recent") if log.exists() else 0
