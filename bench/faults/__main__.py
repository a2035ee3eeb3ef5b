"""Kills, stops and cuts off processes of a mesh; prints what was lost and how long chats paused.

A pause is the time between a chat's last commit before a fault and its first one after. Part of it
is that the next replica recomputes prompt and reply so far; that part is as the replica reports it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace

from bench.faults.chats import (
    ChatLoad,
    ChatTotals,
    ReferenceChat,
    make_reference_chats,
)
from bench.faults.fleet import MeshShape, running
from bench.faults.injection import FaultInjector, FaultSeries
from bench.harness import Cell, Run, Table, parser, start


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults injected into one mesh, and the chats that run meanwhile."""

    shape: MeshShape
    num_tokens: int
    num_chats: int
    replica_kills: int
    router_kills: int = 0
    edge_kills: int = 0
    stops: int = 0
    cuts: int = 0


@dataclass(slots=True)
class MeshResult:
    """What a mesh went through, and what its chats saw."""

    totals: ChatTotals
    faults: list[FaultSeries] = field(default_factory=list)


async def run_faults(plan: Plan, references: list[ReferenceChat]) -> MeshResult:
    """Start a mesh and inject all faults of the plan, one after the other."""
    async with running(plan.shape) as fleet:
        async with ChatLoad(fleet, references, plan.num_chats) as load:
            injector, result = FaultInjector(fleet, load), MeshResult(load.totals)
            result.faults.append(await injector.kill_replicas(plan.replica_kills))
            if plan.router_kills:
                result.faults.append(await injector.kill(fleet.routers, plan.router_kills))
            if plan.edge_kills:
                result.faults.append(await injector.kill(fleet.edges, plan.edge_kills))
            if plan.stops:
                result.faults.append(await injector.stop_replicas(plan.stops))
            if plan.cuts:
                result.faults.append(await injector.cut_region(plan.cuts))
        fleet.files.failed = load.totals.problem
        return result


def report(run: Run, results: dict[str, MeshResult]) -> None:
    """Tables, and what was lost."""
    texts = run.table(
        "Replies of all chats, compared with the reference's, while processes were killed and "
        "stopped",
        "engine", "chats", "tokens", "failed chats", "tokens lost", "tokens doubled",
        "replies that differ",
    )  # fmt: skip
    pauses = run.table(
        "Pause of chats that a fault interrupted, ms: last commit before it to first one after",
        "engine", "fault", "times", "n", "p50", "p95", "p99", "longest",
    )  # fmt: skip
    parts = run.table(
        "Parts of the pause after a replica's death, ms: recomputing the chat so far, and the rest",
        "engine", "n",
        "pause p50", "pause p95", "recompute p50", "recompute p95", "rest p50", "rest p95",
    )  # fmt: skip
    for engine, result in results.items():
        totals = result.totals
        texts.add(
            engine, totals.chats, totals.tokens, len(totals.errors), totals.lost, totals.doubled,
            totals.inexact,
        )  # fmt: skip
        for faults in result.faults:
            times = faults.pauses_ms
            tail = (pauses.quantile(times, share) for share in (0.95, 0.99))
            cells = (pauses.median(times), *tail, max(times, default=0.0))
            pauses.add(engine, faults.name, faults.count, len(times), *cells)
            run.samples(f"pause, {engine}, {faults.name}", times, unit="ms")
        if totals.once_hit:
            _split(run, parts, engine, totals)
    if any(engine.endswith("KV ahead") for engine in results):
        pauses.note("KV ahead: the replica that takes over has copied KV (`router.kv_ahead`).")
    pauses.note("n: chats that were interrupted in the middle of their replies.")
    all_totals = [result.totals for result in results.values()]
    run.figures["problems"] = [problem for it in all_totals if (problem := it.problem)]


def _split(run: Run, table: Table, engine: str, totals: ChatTotals) -> None:
    cells: list[Cell] = []
    above = totals.above_recompute_ms
    whole, again = zip(*totals.once_hit, strict=True)
    for part, times in (("pause", whole), ("recompute", again), ("rest", above)):
        cells += [table.median(times), table.quantile(times, 0.95)]
        run.samples(f"hit once, {engine}, {part}", times, unit="ms")
    table.add(engine, len(above), *cells)


def plans(*, quick: bool, core: bool) -> dict[str, Plan]:
    """By engine: the fake one for numbers, the real one for real costs."""
    real = MeshShape("openvino", num_near=2, num_far=1, num_routers=2, num_edges=2)
    if quick:
        return {
            "fake": Plan(
                MeshShape("fake", num_near=3, num_far=1),
                num_tokens=400,
                num_chats=8,
                replica_kills=10,
                router_kills=4,
                edge_kills=4,
                stops=1,
                cuts=1,
            )
        }
    kills = Plan(real, num_tokens=96, num_chats=4, replica_kills=12, router_kills=4, edge_kills=4)
    ahead = replace(real, kv_ahead=True)
    ahead_kills = replace(kills, shape=ahead, router_kills=0, edge_kills=0)
    if core:
        return {"openvino": kills, "openvino, KV ahead": ahead_kills}
    return {
        "fake": Plan(
            MeshShape("fake", num_near=3, num_far=2),
            num_tokens=400,
            num_chats=12,
            replica_kills=200,
            router_kills=50,
            edge_kills=50,
            stops=5,
            cuts=3,
        ),
        "openvino": replace(kills, stops=1),
        "openvino, KV ahead": ahead_kills,
    }


def main() -> int:
    core = "kills alone, on the real engine alone"
    arguments = parser("faults", __doc__ or "", core=core).parse_args()
    run = start("faults", arguments)
    results = {}
    for engine, plan in plans(quick=run.quick, core=run.core).items():
        run.setting(engine, **asdict(plan))
        references = make_reference_chats(plan.shape.engine, plan.num_tokens)
        results[engine] = asyncio.run(run_faults(plan, references))
        for error in results[engine].totals.errors:
            print(f"FAILED {engine}: {error}")
    report(run, results)
    run.finish()
    return int(bool(run.figures["problems"]))


if __name__ == "__main__":
    raise SystemExit(main())
