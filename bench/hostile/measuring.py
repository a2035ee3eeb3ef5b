"""One attack on a mesh, and what it did to processes and to a bystander."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.harness import TOO_FEW, Cell
from bench.harness.local_mesh import LocalMesh
from bench.harness.processes import child
from bench.harness.statistics import told_quantile
from bench.hostile.bystander import Bystander, Waits
from bench.hostile.catalog import Attack
from bench.hostile.target import Findings, Target
from bench.hostile.watch import MeshWatch, calm_down, left_over, read

MAX_GROWTH_MB = 64.0
MAX_BLOCKED_MS = 50.0
MAX_TAIL_RATIO = 2.0
_TAIL = 0.95
"""A window has some two hundred waits: enough for a p95, and not for a p99."""


def tail_ratio(calm_ms: Sequence[float], attacked_ms: Sequence[float]) -> float | None:
    """The p95 of a bystander's waits, attacked over calm; infinite if nothing came under attack,
    None where either are too few to have one."""
    if not attacked_ms:
        return math.inf
    calm, attacked = told_quantile(calm_ms, _TAIL), told_quantile(attacked_ms, _TAIL)
    return None if calm is None or attacked is None else round(attacked / calm, 3)


def ratio_cell(ratio: float | None) -> Cell:
    """A tail ratio in a table."""
    return TOO_FEW if ratio is None else round(ratio, 2)


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What one attack did."""

    attack: Attack
    calm: Waits
    attacked: Waits
    growth_mb: Mapping[str, float]
    """By process: highest memory during the attack minus memory before it."""
    calm_lag_ms_max: float
    """Longest event loop lag of any process in the calm before."""
    lag_ms_max: Mapping[str, float]
    """By process: longest event loop lag during the attack."""
    blocked_ms_max: Mapping[str, float]
    """By process: longest time that the loop's own thread computed at a stretch."""
    leaks: Mapping[str, int]
    """What was still held seconds after it, by process and kind."""
    strangers_words: int
    broken: list[str]
    done: Mapping[str, int] = field(default_factory=dict)

    @property
    def tail_ratio(self) -> float | None:
        """Of the bystander's waits."""
        return tail_ratio(self.calm.gaps_ms, self.attacked.gaps_ms)

    @property
    def misses(self) -> list[str]:
        """Every aim that was missed, a sentence each."""
        found = list(self.broken)
        found += [
            f"{name} grew by {mb:.0f} MB" for name, mb in self.growth_mb.items()
            if mb > MAX_GROWTH_MB
        ]  # fmt: skip
        found += [
            f"{name}'s loop was blocked for {ms:.0f} ms" for name, ms in self.blocked_ms_max.items()
            if ms > MAX_BLOCKED_MS
        ]  # fmt: skip
        ratio = self.tail_ratio
        if ratio is not None and ratio > MAX_TAIL_RATIO and not self.attack.is_reference:
            found.append(f"the bystander's p95 was {ratio:.1f} times that in calm")
        found += [f"left behind: {count} {what}" for what, count in self.leaks.items()]
        if self.strangers_words:
            found.append(f"another's words were told {self.strangers_words} times")
        found += [f"the bystander's chat failed: {error}" for error in self.attacked.errors[:3]]
        if self.attacked.inexact:
            found.append(f"{self.attacked.inexact} replies of the bystander were not exact")
        return found


async def measure(
    mesh: LocalMesh, target: Target, attack: Attack, bystander: Bystander, seconds: float
) -> AttackResult:
    """The same time in calm and under attack."""
    await calm_down(mesh)
    bystander.waits.clear()
    before = await read(mesh)
    calm_watch = MeshWatch(mesh, before)
    async with watching(calm_watch):
        await asyncio.sleep(seconds)
    calm = bystander.waits.clear()
    before = await read(mesh)
    watch = MeshWatch(mesh, before)
    async with watching(watch):
        findings = await attacked_by(target, attack, seconds)
        attacked = bystander.waits.clear()
    await bystander.pause()
    try:
        leaks = await left_over(mesh, before)
    finally:
        bystander.go_on()
    findings.broken += [f"{name} ended" for name in sorted(watch.lost)]
    return AttackResult(
        attack, calm, attacked, watch.growth_mb, max(calm_watch.lag_ms_max.values()),
        watch.lag_ms_max, watch.blocked_ms_max, leaks, findings.strangers_words, findings.broken,
        findings.done,
    )  # fmt: skip


async def misses_of(
    mesh: LocalMesh, target: Target, attacks: Sequence[Attack], seconds: float
) -> list[str]:
    """Every aim that was missed after all of these attacks; without a bystander, so without
    latencies."""
    before = await read(mesh)
    watch, found = MeshWatch(mesh, before), list[str]()
    async with watching(watch):
        several = await attacked_by_each(target, attacks, seconds)
        for attack, findings in zip(attacks, several, strict=True):
            found += [f"{attack.name}: {broken}" for broken in findings.broken]
            if findings.strangers_words:
                found.append(f"{attack.name}: another's words were told")
            if not findings.done:
                found.append(f"{attack.name}: nothing was done")
    found += [
        f"{name} grew by {mb:.0f} MB" for name, mb in watch.growth_mb.items() if mb > MAX_GROWTH_MB
    ]
    found += [f"{name} ended" for name in sorted(watch.lost)]
    leaks = await left_over(mesh, before)
    return found + [f"left behind: {count} {what}" for what, count in leaks.items()]


@contextlib.asynccontextmanager
async def watching(watch: MeshWatch) -> AsyncIterator[None]:
    """Watch for as long as the context lasts, and once more at its end."""
    task = asyncio.create_task(watch.go_on())
    try:
        yield
        await watch.look()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def attacked_by(target: Target, attack: Attack, seconds: float) -> Findings:
    """Make one attack, from a process of its own."""
    (findings,) = await attacked_by_each(target, [attack], seconds)
    return findings


async def attacked_by_each(
    target: Target, attacks: Sequence[Attack], seconds: float
) -> list[Findings]:
    """Make one attack after the other, from a process that is only theirs."""
    names = ",".join(attack.name for attack in attacks)
    command = (sys.executable, "-m", "bench.hostile.attacker", names, str(seconds))
    async with child(*command, target.to_json()) as process:
        lines = [await process.stdout.readline() for _ in attacks]
    died = Findings(broken=["the attack itself failed: it ended without a word"])
    return [Findings(**json.loads(line)) if line else died for line in lines]
