"""Kills, stops and cuts; prints what was lost, and how long chats paused. `--stalls`: stops alone,
many of them, where there is no way round whoever stands still (stalls.py).

A pause is the time between a chat's last commit before a fault and its first one after. Part of it
is that the next replica computes prompt and reply so far anew, as that replica says itself.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict, dataclass, field, replace

from bench.faults import stalls
from bench.faults.fleet import Shape, running
from bench.faults.load import REPLICA_KILL, Job, Load, Tally, make_jobs
from bench.faults.scenarios import Faults, Trouble
from bench.harness.figures import Cell, Run, Table, parser, quantile, start


@dataclass(frozen=True, slots=True)
class Plan:
    """What one mesh has to bear."""

    shape: Shape
    num_tokens: int
    num_chats: int
    replica_kills: int
    router_kills: int = 0
    edge_kills: int = 0
    stops: int = 0
    cuts: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    tally: Tally
    faults: list[Faults] = field(default_factory=list)


async def endure(plan: Plan, jobs: list[Job]) -> Outcome:
    """One mesh, all its faults one after the other."""
    async with running(plan.shape) as fleet:
        async with Load(fleet, jobs, plan.num_chats) as load:
            trouble, outcome = Trouble(fleet, load), Outcome(load.tally)
            outcome.faults.append(await trouble.kill_replicas(plan.replica_kills))
            if plan.router_kills:
                outcome.faults.append(await trouble.kill(fleet.routers, plan.router_kills))
            if plan.edge_kills:
                outcome.faults.append(await trouble.kill(fleet.edges, plan.edge_kills))
            if plan.stops:
                outcome.faults.append(await trouble.stop_replicas(plan.stops))
            if plan.cuts:
                outcome.faults.append(await trouble.cut_region(plan.cuts))
        return outcome


def report(run: Run, outcomes: dict[str, Outcome]) -> None:
    """Tables and figures."""
    texts = run.table(
        "Chats under faults", "engine", "chats", "tokens", "failed", "tokens lost",
        "tokens doubled", "texts not exact",
    )  # fmt: skip
    pauses = run.table(
        "Pause of the chats that were hit, ms", "engine", "what failed", "times", "n",
        "p50", "p95", "p99", "longest",
    )  # fmt: skip
    parts = run.table(
        "Of the pause of chats that were hit once by a replica's end, ms", "engine", "n",
        "pause p50", "pause p95", "recompute p50", "recompute p95", "above it p50", "above it p95",
    )  # fmt: skip
    for engine, outcome in outcomes.items():
        tally = outcome.tally
        texts.add(
            engine, tally.chats, tally.tokens, len(tally.errors), tally.lost, tally.doubled,
            tally.inexact,
        )  # fmt: skip
        for faults in outcome.faults:
            times = faults.pauses_ms
            tail = (pauses.quantile(times, share) for share in (0.95, 0.99))
            cells = (pauses.median(times), *tail, max(times, default=0.0))
            pauses.add(engine, faults.name, faults.count, len(times), *cells)
            run.samples(f"pause, {engine}, {faults.name}", times, unit="ms")
        if tally.once_hit:
            _split(run, parts, engine, tally)
    pauses.note("n: chats that were hit in the middle of their replies.")
    _figures(run, outcomes)


def _split(run: Run, table: Table, engine: str, tally: Tally) -> None:
    cells: list[Cell] = []
    above = [max(0.0, pause - again) for pause, again in tally.once_hit]
    whole, again = zip(*tally.once_hit, strict=True)
    for part, times in (("pause", whole), ("recompute", again), ("above it", above)):
        cells += [table.median(times), table.quantile(times, 0.95)]
        run.samples(f"hit once, {engine}, {part}", times, unit="ms")
    table.add(engine, len(above), *cells)


def _figures(run: Run, outcomes: dict[str, Outcome]) -> None:
    tallies = [outcome.tally for outcome in outcomes.values()]
    kills = [f for o in outcomes.values() for f in o.faults if f.name == REPLICA_KILL]
    pauses = [pause for faults in kills[:1] for pause in faults.pauses_ms]
    run.figures |= {
        "kills": sum(faults.count for faults in kills),
        "lost": sum(tally.lost for tally in tallies),
        "doubled": sum(tally.doubled for tally in tallies),
        "inexact": sum(tally.inexact for tally in tallies),
        "failed": sum(len(tally.errors) for tally in tallies),
        "num_pauses": len(pauses),
        "pause_ms_p50": round(quantile(pauses, 0.5), 1),
        "pause_ms_p99": round(quantile(pauses, 0.99), 1),
    }


def plans(*, quick: bool, core: bool) -> dict[str, Plan]:
    """By engine: the fake one for numbers, the real one for real costs."""
    real = Shape("openvino", 2, 1, 2, 2)
    if quick:
        return {"fake": Plan(Shape("fake", 3, 1), 400, 8, 10, 4, 4, 1, 1)}
    if core:
        return {"openvino": Plan(real, 96, 4, 12, 4, 4)}
    return {
        "fake": Plan(Shape("fake", 3, 2), 400, 12, 200, 50, 50, 5, 3),
        "openvino": Plan(real, 96, 4, 12, 4, 4, 1, 0),
    }


def main() -> int:
    core = "kills alone, on the real engine alone"
    options = parser("faults", __doc__ or "", core=core)
    options.add_argument("--stalls", action="store_true", help="processes that stand still, alone")
    options.add_argument(
        "--roles", nargs="+", choices=stalls.ROLES, default=stalls.ROLES, help="which of them do"
    )
    arguments = options.parse_args()
    if arguments.stalls:
        return _stalls(arguments)
    run = start("faults", arguments)
    outcomes = {}
    for engine, plan in plans(quick=run.quick, core=run.core).items():
        run.setting(engine, **asdict(plan))
        jobs = make_jobs(engine, plan.num_tokens)
        outcomes[engine] = asyncio.run(endure(plan, jobs))
        for error in outcomes[engine].tally.errors:
            print(f"FAILED {engine}: {error}")
    report(run, outcomes)
    run.finish()
    figures = run.figures
    return int(any(figures[name] for name in ("lost", "doubled", "inexact", "failed")))


def _stalls(arguments: argparse.Namespace) -> int:
    run = start("stalls", arguments)
    plan = stalls.StallPlan(roles=tuple(arguments.roles))
    if run.quick:
        plan = replace(plan, num_stops=1, num_short_stops=1)
    run.setting("fake", **asdict(plan))
    outcomes = asyncio.run(stalls.endure(plan, make_jobs("fake", plan.num_tokens)))
    for outcome in outcomes:
        for error in outcome.tally.errors:
            print(f"FAILED {outcome.num_chats} chats: {error}")
    stalls.report(run, outcomes)
    run.finish()
    figures = run.figures
    return int(any(figures[name] for name in ("lost", "doubled", "inexact", "failed", "put_away")))


if __name__ == "__main__":
    raise SystemExit(main())
