"""What attacks do to the processes of a mesh, and to those who chat meanwhile.

Each attack is measured in several rounds, whose order rotates: the same time in calm and under
attack, in calm first in every other round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.harness import Cell, Run, Table, quantile
from bench.harness.local_mesh import LocalMesh
from bench.harness.statistics import num_needed
from bench.hostile.attacker import attacked_by
from bench.hostile.bystander import Bystander, Waits
from bench.hostile.catalog import Attack
from bench.hostile.target import Findings, Target
from bench.hostile.watch import MeshWatch, busy_share, calm_down, left_over, read

MAX_GROWTH_MB: Final = 64.0
MAX_BLOCKED_MS: Final = 50.0
MAX_RATIO: Final = 2.0
"""Of the bystander's p95 between two words, under attack over calm."""
MAX_TEXT_RATIO: Final = 4.0
"""Of the p95 of a text's tokenization: every other turn of the threads is the attacker's, and so
may be half of the processors."""
MAX_BUSY: Final = 0.05
"""Of one core, by the process that computes most, in BUSY_S after an attack whose clients left."""
BUSY_S: Final = 2.0


@dataclass(slots=True)
class AttackResult:
    """What one attack did, in all rounds together."""

    attack: Attack
    calm: dict[str, Waits] = field(default_factory=dict)
    """By bystander: in the calm before it or after it."""
    attacked: dict[str, Waits] = field(default_factory=dict)
    """By bystander: during it."""
    ratios: dict[str, list[float]] = field(default_factory=dict)
    """By bystander: of the p95 between two words, attacked over calm, by round."""
    growth_mb: float = 0.0
    """Of the process that grew most: highest memory during the attack minus memory before it."""
    blocked_ms: float = 0.0
    """Longest time that the thread of a process's loop computed at a stretch."""
    left: dict[str, int] = field(default_factory=dict)
    """What was still held seconds after it, by process and kind."""
    busy: float = 0.0
    """Processor time after it, of the process that computed most, as a share of one core."""
    num_tracebacks: int = 0
    """In the edge's log."""
    findings: Findings = field(default_factory=Findings)

    def add_waits(self, calm: Mapping[str, Waits], attacked: Mapping[str, Waits]) -> None:
        """Those of one more round."""
        for name in calm:
            self.calm.setdefault(name, Waits()).add(calm[name])
            self.attacked.setdefault(name, Waits()).add(attacked[name])
            gaps = attacked[name].judged_ms, calm[name].judged_ms
            ratio = quantile(gaps[0], 0.95) / quantile(gaps[1], 0.95) if all(gaps) else float("inf")
            self.ratios.setdefault(name, []).append(ratio)

    def misses(self, *, judges_times: bool, max_growth_mb: float = MAX_GROWTH_MB) -> list[str]:
        """Every aim that was missed, a sentence each. `judges_times`: whether there was time enough
        for what the bystanders waited for, and for what the attack expects."""
        found, done = list(self.findings.broken), self.findings.done
        expected = self.attack.expects
        if self.growth_mb > max_growth_mb:
            found.append(f"a process grew by {self.growth_mb:.0f} MB")
        if self.blocked_ms > MAX_BLOCKED_MS:
            found.append(f"a loop was blocked for {self.blocked_ms:.0f} ms")
        if self.attack.leaves and self.busy > MAX_BUSY:
            found.append(f"a process computed on {self.busy:.0%} of a core for nobody")
        found += [f"left behind: {count} {what}" for what, count in self.left.items()]
        if self.num_tracebacks:
            found.append(f"the edge logged {self.num_tracebacks} tracebacks")
        for name, waits in self.attacked.items():
            found += [f"the {name} bystander's chat failed: {it}" for it in waits.errors[:3]]
            if waits.num_inexact:
                found.append(f"{waits.num_inexact} replies of the {name} bystander were not exact")
        if not done:
            found.append("nothing was done")
        elif judges_times and not any(it.startswith(expected) and done[it] for it in done):
            found.append(f"nothing was {expected}")
        return found + (self._slowed() if judges_times else [])

    def _slowed(self) -> list[str]:
        found = []
        for name in self.calm if not self.attack.is_reference else ():
            calm, attacked = self.calm[name].judged_ms, self.attacked[name].judged_ms
            limit = MAX_RATIO if self.calm[name].itl_ms else MAX_TEXT_RATIO
            if min(len(calm), len(attacked)) < num_needed(0.95):
                found.append(f"no power: the {name} bystander got {len(attacked)} answers")
            elif (ratio := quantile(attacked, 0.95) / quantile(calm, 0.95)) > limit:
                found.append(f"the {name} bystander's p95 was {ratio:.1f} times that in calm")
        return found


async def measure(
    mesh: LocalMesh,
    target: Target,
    result: AttackResult,
    bystanders: Mapping[str, Bystander],
    seconds: float,
    *,
    calm_first: bool,
) -> None:
    """One round, which is added to the result."""
    waits: dict[bool, dict[str, Waits]] = {}
    for is_attack in (False, True) if calm_first else (True, False):
        await calm_down(mesh)
        for one in bystanders.values():
            one.noted()
        if is_attack:
            waits[True] = await _attack(mesh, target, result, bystanders, seconds)
        else:
            await asyncio.sleep(seconds)
            waits[False] = {name: one.noted() for name, one in bystanders.items()}
    result.add_waits(waits[False], waits[True])


async def _attack(
    mesh: LocalMesh,
    target: Target,
    result: AttackResult,
    bystanders: Mapping[str, Bystander],
    seconds: float,
) -> dict[str, Waits]:
    before, log_before = await read(mesh), _num_tracebacks(mesh)
    watch = MeshWatch(mesh, before)
    async with watch.watching():
        (findings,) = await attacked_by(target, [result.attack], seconds)
        waits = {name: one.noted() for name, one in bystanders.items()}
    async with contextlib.AsyncExitStack() as stack:
        for one in bystanders.values():
            await stack.enter_async_context(one.silent())
        result.busy = max(result.busy, await busy_share(mesh, BUSY_S))
        result.left |= await left_over(mesh, before)
    result.growth_mb = max(result.growth_mb, *watch.growth_mb.values())
    result.blocked_ms = max(result.blocked_ms, *watch.blocked_ms.values())
    result.num_tracebacks += _num_tracebacks(mesh) - log_before
    for what, times in findings.done.items():
        result.findings.count(what, times)
    for missed in (*findings.broken, *(f"{name} ended" for name in sorted(watch.lost))):
        result.findings.missed(missed)
    return waits


async def misses_of(
    mesh: LocalMesh, target: Target, attacks: Sequence[Attack], seconds: float
) -> list[str]:
    """Every aim that was missed after all of these attacks, one after the other; without
    bystanders, so without latencies, and at everybody's priority: beside busy neighbours an attack
    below it would not come to its turn. Growth may be twice that of one attack in a mesh that has
    served before: this one has not, and what its processes load with their first chats counts."""
    before = await read(mesh)
    watch, found = MeshWatch(mesh, before), list[str]()
    async with watch.watching():
        for attack, findings in zip(
            attacks, await attacked_by(target, attacks, seconds, niceness=0), strict=True
        ):
            result = AttackResult(attack, findings=findings)
            found += [f"{attack.name}: {it}" for it in result.misses(judges_times=False)]
    everything = AttackResult(attacks[0], findings=Findings({"all": 1}))
    everything.growth_mb = max(watch.growth_mb.values())
    everything.left = await left_over(mesh, before)
    found += [f"{name} ended" for name in sorted(watch.lost)]
    return found + everything.misses(judges_times=False, max_growth_mb=2 * MAX_GROWTH_MB)


def report(run: Run, results: Sequence[AttackResult]) -> None:
    """Tables, and the aims that were missed."""
    waits = run.table(
        "A mesh under attack, by attack: what chatting bystanders wait for, in calm and during it",
        *("attack", "bystander", "n, TTFT", "TTFT p50 in calm, ms", "during, ms", "n, ITL"),
        *("ITL p50 in calm, ms", "during, ms", "ITL p95 in calm, ms", "during, ms"),
        "p95 during over calm, by round",
    )
    held = run.table(
        "A mesh under attack, by attack: what its processes hold and answer",
        *("attack", "what it sends", "memory growth, max MB", "loop blocked, max ms"),
        *("processor after, % of a core", "resources left", "answers", "aims missed"),
    )
    broken: list[str] = []
    for result in results:
        name, misses = result.attack.name, result.misses(judges_times=not run.quick)
        broken += [f"{name}: {it}" for it in misses]
        for bystander in result.calm:
            waits.add(name.replace("_", " "), bystander, *_waited(run, waits, result, bystander))
        answers = ", ".join(f"{it} ({n})" for it, n in sorted(result.findings.done.items()) if n)
        held.add(
            *(name.replace("_", " "), result.attack.sends, round(result.growth_mb, 1)),
            *(round(result.blocked_ms, 1), round(100 * result.busy, 1)),
            *(sum(result.left.values()), answers, len(misses)),
        )
    waits.note(
        "TTFT: from asking to the first word; ITL: from each word to the next. Honest clients chat "
        "as the bystanders do: what they cost is the yardstick, and no aim holds for it."
    )
    held.note(
        "Memory growth: of the process that grew most. Loop blocked: the longest that an event "
        "loop's own thread computed at a stretch. Processor after: time in 2 s "
        "after it, of the process that computed most. Resources: tasks, files, sessions and "
        "connections seconds after it."
    )
    run.figures["broken"] = broken


def _waited(run: Run, table: Table, result: AttackResult, bystander: str) -> list[Cell]:
    calm, attacked = result.calm[bystander], result.attacked[bystander]
    for kind, before, during in (
        ("TTFT", calm.ttft_ms, attacked.ttft_ms),
        ("ITL", calm.itl_ms, attacked.itl_ms),
    ):
        run.samples(f"{result.attack.name}, {bystander}, {kind}, calm", before, unit="ms")
        run.samples(f"{result.attack.name}, {bystander}, {kind}, attacked", during, unit="ms")
    return [
        *(len(attacked.ttft_ms), table.median(calm.ttft_ms), table.median(attacked.ttft_ms)),
        *(len(attacked.itl_ms), table.median(calm.itl_ms), table.median(attacked.itl_ms)),
        *(table.quantile(calm.itl_ms, 0.95), table.quantile(attacked.itl_ms, 0.95)),
        table.median(result.ratios[bystander]),
    ]


def _num_tracebacks(mesh: LocalMesh) -> int:
    log = mesh.state_dir / "logs" / "edge.log"
    return log.read_bytes().count(b"Traceback (most recent") if log.exists() else 0
