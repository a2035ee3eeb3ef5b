"""What a committed token costs on its way (see docs/figures.md).

One mesh of an edge, a router and a replica whose engine only waits. For every load clients open so
many chats, and once all of them decode, the processor time of each process is taken over windows of
whole engine calls, several of them. Calls are as long as it takes for nothing to be saturated: the
tables say how long. Routers of others end HTTP themselves: beside them stand our edge and router
together. It ends within `--minutes`: what did not begin by then is told as not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench.cost.gateways import GATEWAYS, relay_us
from bench.cost.measuring import NUM_WINDOWS, SETTINGS, Cost, Load, cost_mesh, idle, measure
from bench.harness import Run, median, parser, start

CHATS: Final = (1, 16, 64, 256, 1000)
QUICK_CHATS: Final = (1, 16)
TICK_MS: Final = 50.0
"""Of an engine call where many chats are carried: 20 tokens a second and chat without drafts."""
_LEAST_TICK_MS: Final = 10.0
"""Of an engine call elsewhere: a chat alone on a fast GPU."""
_MAX_COMMITS_PER_S: Final = 800.0
"""Of all chats together."""
ROLES: Final = ("client", "edge", "router", "streams", "scheduler")
AIMS_US: Final = {"edge": 100, "router": 25, "streams": 40}
"""At 64 chats, native, no provisional text."""
_MIDDLE: Final = 64
"""So many chats are also measured with a connection for each, and with text that repeats itself."""
_REPETITION: Final = 0.75
_MANY_CHATS: Final = 1000
_OURS_SHARE, _OTHERS_SHARE = 0.65, 0.85
"""Of the whole time: by then no measurement of that part begins."""
_TIME_IS_UP: Final = "the time was up (--minutes)"
AIM_ITL: Final = 1.5


def loads(counts: Sequence[int]) -> list[Load]:
    """In the order of the table."""
    made = [
        load
        for chats in counts
        for load in (
            Load(chats),
            Load(chats, provisional=True),
            Load(chats, protocol="http"),
        )
    ]
    if _MIDDLE in counts:
        made += [
            Load(_MIDDLE, "native", provisional, per_connection, repetition)
            for provisional in (False, True)
            for per_connection, repetition in ((1, 0.0), (64, _REPETITION))
        ]
    return made


def meshes(chosen: Sequence[Load]) -> list[list[Load]]:
    """Loads by the mesh that they share. Where drafts are right, each has one of its own: a replica
    remembers for hundreds of calls of one size what a row cost, and calls of the fake engine that
    take other times than before, with as many rows, look like rows that cost more."""
    plain = [load for load in chosen if not load.repetition]
    return [plain] * bool(plain) + [[load] for load in chosen if load.repetition]


def tick_ms(chats: int) -> float:
    """100 calls a second, or fewer where so many chats would commit more than is carried."""
    return max(_LEAST_TICK_MS, chats / _MAX_COMMITS_PER_S * 1e3)


async def beside_the_engine(run: Run, chosen: Sequence[Load], seconds: float, until: float) -> None:
    """Our own processes; `until` as time.monotonic()."""
    costs: list[Cost] = []
    without: dict[str, float] = {}
    for group in meshes(chosen):
        async with cost_mesh() as mesh:
            without = without or await idle(mesh, seconds)
            for load in group:
                try:
                    if time.monotonic() > until:
                        raise RuntimeError(_TIME_IS_UP)
                    costs.append(await measure(mesh, load, tick_ms(load.chats), seconds))
                    print(_progress(costs[-1]), file=sys.stderr, flush=True)
                except RuntimeError as error:
                    _not_measured(run, f"{load.chats} chats, {load.label}", error)
    report(run, costs)
    table = run.table("Cores that a process uses without a chat", "edge", "router", "replica")
    table.add(*(without[role] for role in ("edge", "router", "replica")))


def _not_measured(run: Run, what: str, error: Exception) -> None:
    print(f"{what}: {error}", file=sys.stderr)
    run.setting("not measured", **{what: str(error)})


def _progress(cost: Cost) -> str:
    parts = ", ".join(f"{role} {median(cost.us_per_token(role)):.0f}" for role in ROLES)
    return f"{cost.load.chats} chats, {cost.load.label}: {parts} us; {cost.busy_cores:.2f} cores"


def report(run: Run, costs: Sequence[Cost]) -> None:
    """Tables."""
    table = run.table(
        "Processor time of a committed token, us, by process, beside an engine that only waits",
        *("chats", "protocol", "client", "edge", "router", "edge + router", "replica: streams"),
        *("replica: scheduler", "tokens/s", "tokens per commit", "tick, ms", "cores busy"),
    )
    for cost in costs:
        who = (cost.load.chats, cost.load.label)
        parts = [("client",), ("edge",), ("router",), ("edge", "router")]
        samples = {roles: cost.us_per_token(*roles) for roles in (*parts, *_REPLICA)}
        rates = (
            cost.total("num_tokens") / cost.total("seconds"),
            cost.total("num_tokens") / max(1, cost.total("num_events")),
        )
        cells = (table.median(times) for times in samples.values())
        table.add(*who, *cells, *rates, cost.tick_ms, cost.busy_cores)
        for roles, times in samples.items():
            run.samples(f"{who[0]} chats, {who[1]}, {' + '.join(roles)}", times, unit="us")
        if cost.num_failed:
            run.setting("failed", **{f"{cost.load.chats}, {cost.load.label}": cost.error})
    table.note(f"Medians of {NUM_WINDOWS} windows of whole engine calls.")
    aims = ", ".join(f"{role} {us}" for role, us in AIMS_US.items())
    table.note(f"Aims at {_MIDDLE} chats, native, no provisional text, us: {aims}.")
    beside = run.table(
        "Processor time to take a token to a client over HTTP, us: other routers relay an event of "
        "one token as SSE; of ours it is edge and router together",
        *("chats", "system", "us per token", "tokens/s", "tick, ms"),
    )
    for cost in costs:
        if cost.load.protocol == "http":
            rate = cost.total("num_tokens") / cost.total("seconds")
            taken = beside.median(cost.us_per_token("edge", "router"))
            beside.add(cost.load.chats, "outrider, edge + router", taken, rate, cost.tick_ms)


_REPLICA: Final = (("streams",), ("scheduler",))


async def others(run: Run, counts: Sequence[int], seconds: float, until: float) -> None:
    """Routers of others in the same units, and the same table."""
    (table,) = [it for it in run.tables if it.title.startswith("Processor time to take a token")]
    for gateway in GATEWAYS:
        if not gateway.peer.is_installed():
            print(f"{gateway.name}: {gateway.peer.hint}", file=sys.stderr)
            run.setting(gateway.name, took_no_part=gateway.peer.hint)
            continue
        run.setting(gateway.name, version=gateway.peer.version, flags="its own defaults")
        for chats in counts:
            tick = tick_ms(chats)
            try:
                if time.monotonic() > until:
                    raise RuntimeError(_TIME_IS_UP)
                taken, rate = await relay_us(gateway, chats, tick, seconds)
            except (RuntimeError, OSError) as error:
                _not_measured(run, f"{gateway.name}, {chats} chats", error)
                continue
            table.add(chats, gateway.name, table.median(taken), rate, tick)
            run.samples(f"{gateway.name}, {chats} chats", taken, unit="us")


async def many(run: Run, seconds: float) -> None:
    """Chats of 20 tokens a second, as many as are asked for, whatever becomes of it."""
    table = run.table(
        f"{_MANY_CHATS} chats with engine calls of {TICK_MS:g} ms: time between two commits of a "
        "chat, over the duration of a call",
        *("protocol", "n", "p50", "p95", "p99", "tokens/s", "cores busy", "chats that failed"),
    )
    async with cost_mesh() as mesh:
        load = Load(_MANY_CHATS)
        try:
            cost = await measure(mesh, load, TICK_MS, seconds)
        except RuntimeError as error:
            _not_measured(run, f"{_MANY_CHATS} chats at {TICK_MS:g} ms", error)
            return
    gaps = [gap / TICK_MS for gap in cost.gaps_ms]
    shares = [table.quantile(gaps, share) for share in (0.5, 0.95, 0.99)]
    rate = cost.total("num_tokens") / cost.total("seconds")
    table.add(load.label, len(gaps), *shares, rate, cost.busy_cores, cost.num_failed)
    table.note(f"Aim: a p99 of at most {AIM_ITL:g}.")
    run.samples("many chats, ITL over the tick", gaps, unit="ticks")


def main() -> int:
    made = parser("cost", __doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--minutes", type=float, default=35.0, help="in which all of it has to begin")
    arguments = made.parse_args()
    run = start("cost", arguments)
    for role, settings in SETTINGS.items():
        run.setting(role, **settings)
    counts, seconds = (QUICK_CHATS, 2.0) if run.quick else (CHATS, 8.0)
    begun, whole_s = time.monotonic(), arguments.minutes * 60
    asyncio.run(beside_the_engine(run, loads(counts), seconds, begun + whole_s * _OURS_SHARE))
    asyncio.run(others(run, counts, seconds, begun + whole_s * _OTHERS_SHARE))
    if not run.quick and time.monotonic() < begun + whole_s:
        asyncio.run(many(run, seconds))
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
