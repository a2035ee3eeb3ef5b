"""Processes are stopped (SIGSTOP) for a while and go on: chats wait and go on too, and no healthy
peer is quarantined for it.

One router, one edge, two replicas and two tokenizers, so that there is no spare process to move to.
Every process is stopped for longer than gRPC's keepalive timeout, so that the others close its
connections; then again and again for short times while many chats run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.faults.chats import ChatLoad, ChatTotals, ReferenceChat
from bench.faults.fleet import Fleet, MeshShape, Service, running
from bench.faults.injection import FaultInjector, FaultSeries
from bench.harness import Run, quantile

ROLES = ("router", "edge", "inference", "tokenizer")
FEW, MANY = 8, 64
SHAPE = MeshShape(
    "fake",
    num_near=2,
    num_far=0,
    num_routers=1,
    num_edges=1,
    num_tokenizers=2,
    max_sessions=MANY,
    quarantine=True,
)
"""Each replica has room for all chats: none is refused as overloaded."""
_SHORT_S = (0.3, 1.2, 3.0)
"""Seconds: too short to be noticed, noticed, and long enough for buffers to fill up."""


@dataclass(frozen=True, slots=True)
class StallPlan:
    """How many stops, and how long."""

    num_stops: int = 20
    """Stops of each role with few chats, `stop_s` each."""
    stop_s: float = 15.0
    num_short_stops: int = 7
    """Stops of each role and each length of `_SHORT_S`, with many chats."""
    num_tokens: int = 400
    roles: tuple[str, ...] = ROLES


@dataclass(slots=True)
class StallResult:
    """What happened with one number of chats."""

    num_chats: int
    totals: ChatTotals
    num_quarantined: int = 0
    """Replicas and routers that were quarantined."""
    faults: list[FaultSeries] = field(default_factory=list)


async def run_faults(plan: StallPlan, references: list[ReferenceChat]) -> list[StallResult]:
    """All stops, with few chats and with many. Long stops are mostly waiting, so two meshes share
    the machine for them; that makes it harder for each to answer in time, not easier."""
    halves = [
        _run_stops(plan, references, FEW, roles) for roles in (plan.roles[::2], plan.roles[1::2])
    ]
    return [*await asyncio.gather(*halves), await _run_stops(plan, references, MANY, plan.roles)]


async def _run_stops(
    plan: StallPlan, references: list[ReferenceChat], num_chats: int, roles: Sequence[str]
) -> StallResult:
    """The stops of these roles on a mesh of their own."""
    async with running(SHAPE) as fleet, ChatLoad(fleet, references, num_chats) as load:
        injector, result = FaultInjector(fleet, load), StallResult(num_chats, load.totals)
        for role in roles:
            for count, stop_s in _stops(plan, num_chats):
                if count:
                    services = services_of(fleet, role)
                    result.faults.append(await injector.stop(services, count, stop_s))
        result.num_quarantined = await fleet.num_quarantined()
        fleet.files.failed = load.totals.problem
    return result


def _stops(plan: StallPlan, num_chats: int) -> list[tuple[int, float]]:
    if num_chats == FEW:
        return [(plan.num_stops, plan.stop_s)]
    return [(plan.num_short_stops, stop_s) for stop_s in _SHORT_S]


def services_of(fleet: Fleet, role: str) -> tuple[Service, ...]:
    """All processes of a role."""
    every = (*fleet.routers, *fleet.edges, *fleet.replicas, *fleet.tokenizers)
    return tuple(service for service in every if service.role == role)


def report(run: Run, results: list[StallResult]) -> None:
    """Tables and figures."""
    texts = run.table(
        "Replies of all chats, compared with the reference's, while processes were stopped "
        "(SIGSTOP)",
        "chats at once", "chats", "tokens", "failed chats", "tokens lost", "tokens doubled",
        "replies that differ", "peers quarantined",
    )  # fmt: skip
    pauses = run.table(
        "Pause of chats that a stop interrupted, ms", "chats at once", "stopped", "times", "n",
        "p50", "p95", "longest",
    )  # fmt: skip
    for it in results:
        totals = it.totals
        texts.add(
            it.num_chats, totals.chats, totals.tokens, len(totals.errors), totals.lost,
            totals.doubled, totals.inexact, it.num_quarantined,
        )  # fmt: skip
        for faults in it.faults:
            times = faults.pauses_ms
            cells = (pauses.median(times), pauses.quantile(times, 0.95), max(times, default=0.0))
            pauses.add(it.num_chats, faults.name, faults.count, len(times), *cells)
    all_totals = [it.totals for it in results]
    times = [pause for it in results for faults in it.faults for pause in faults.pauses_ms]
    run.figures |= {
        "stops": sum(faults.count for it in results for faults in it.faults),
        "chats": sum(totals.chats for totals in all_totals),
        "failed": sum(len(totals.errors) for totals in all_totals),
        "lost": sum(totals.lost for totals in all_totals),
        "doubled": sum(totals.doubled for totals in all_totals),
        "inexact": sum(totals.inexact for totals in all_totals),
        "put_away": sum(it.num_quarantined for it in results),
        "pause_ms_p50": round(quantile(times, 0.5), 1) if times else 0.0,
    }
