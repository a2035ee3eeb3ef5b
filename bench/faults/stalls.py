"""Processes stand still for a while and go on: nobody may be blamed who was well.

One router, one edge, two replicas and two tokenizers, so that there is no way round whoever stands
still: chats wait, and go on. Every process is stopped (SIGSTOP) for longer than gRPC lets a silent
peer be, so that its connections are closed by the others; then again and again for moments while
many chats run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.faults.fleet import Fleet, Shape, running
from bench.faults.load import Job, Load, Tally
from bench.faults.processes import Service
from bench.faults.scenarios import Faults, Trouble
from bench.harness.figures import Run, quantile

ROLES = ("router", "edge", "inference", "tokenizer")
FEW, MANY = 8, 64
SHAPE = Shape("fake", 2, 0, 1, 1, num_tokenizers=2, max_sessions=MANY, forgives=False)
"""Each replica has room for all chats: none is refused for want of it."""
_SHORT_S = (0.3, 1.2, 3.0)
"""Below what counts as a stop, above it, and long enough for buffers to fill up."""


@dataclass(frozen=True, slots=True)
class StallPlan:
    """How much of it."""

    num_stops: int = 20
    """Of each role, with few chats, each for `stop_s`."""
    stop_s: float = 15.0
    num_short_stops: int = 7
    """Of each role and length, with many chats."""
    num_tokens: int = 400
    roles: tuple[str, ...] = ROLES


@dataclass(slots=True)
class Stalls:
    """What came of one load."""

    num_chats: int
    tally: Tally
    num_put_away: int = 0
    """Replicas and routers, by those who judge them."""
    faults: list[Faults] = field(default_factory=list)


async def endure(plan: StallPlan, jobs: list[Job]) -> list[Stalls]:
    """All stops, with few chats and with many. Long stops are mostly waiting: two meshes share the
    machine for them, which makes it no easier for anybody to be on time."""
    halves = [_endured(plan, jobs, FEW, roles) for roles in (plan.roles[::2], plan.roles[1::2])]
    return [*await asyncio.gather(*halves), await _endured(plan, jobs, MANY, plan.roles)]


async def _endured(
    plan: StallPlan, jobs: list[Job], num_chats: int, roles: Sequence[str]
) -> Stalls:
    """The stops of these roles, on a mesh of their own."""
    async with running(SHAPE) as fleet, Load(fleet, jobs, num_chats) as load:
        trouble, outcome = Trouble(fleet, load), Stalls(num_chats, load.tally)
        for role in roles:
            for count, stop_s in _stops(plan, num_chats):
                if count:
                    services = services_of(fleet, role)
                    outcome.faults.append(await trouble.stop(services, count, stop_s))
        outcome.num_put_away = await fleet.num_put_away()
    return outcome


def _stops(plan: StallPlan, num_chats: int) -> list[tuple[int, float]]:
    if num_chats == FEW:
        return [(plan.num_stops, plan.stop_s)]
    return [(plan.num_short_stops, stop_s) for stop_s in _SHORT_S]


def services_of(fleet: Fleet, role: str) -> tuple[Service, ...]:
    """All processes of a role."""
    every = (*fleet.routers, *fleet.edges, *fleet.replicas, *fleet.tokenizers)
    return tuple(service for service in every if service.role == role)


def report(run: Run, outcomes: list[Stalls]) -> None:
    """Tables and figures."""
    texts = run.table(
        "Chats while processes stood still", "chats at once", "chats", "tokens", "failed",
        "tokens lost", "tokens doubled", "texts not exact", "put away",
    )  # fmt: skip
    pauses = run.table(
        "Pause of the chats that were hit, ms", "chats at once", "what stood still", "times", "n",
        "p50", "p95", "longest",
    )  # fmt: skip
    for it in outcomes:
        tally = it.tally
        texts.add(
            it.num_chats, tally.chats, tally.tokens, len(tally.errors), tally.lost, tally.doubled,
            tally.inexact, it.num_put_away,
        )  # fmt: skip
        for faults in it.faults:
            times = faults.pauses_ms
            cells = (pauses.median(times), pauses.quantile(times, 0.95), max(times, default=0.0))
            pauses.add(it.num_chats, faults.name, faults.count, len(times), *cells)
    tallies = [it.tally for it in outcomes]
    times = [pause for it in outcomes for faults in it.faults for pause in faults.pauses_ms]
    run.figures |= {
        "stops": sum(faults.count for it in outcomes for faults in it.faults),
        "chats": sum(tally.chats for tally in tallies),
        "failed": sum(len(tally.errors) for tally in tallies),
        "lost": sum(tally.lost for tally in tallies),
        "doubled": sum(tally.doubled for tally in tallies),
        "inexact": sum(tally.inexact for tally in tallies),
        "put_away": sum(it.num_put_away for it in outcomes),
        "pause_ms_p50": round(quantile(times, 0.5), 1) if times else 0.0,
    }
