"""What a committed token costs on its way (see docs/figures.md).

One mesh of an edge, a router and a replica whose engine only waits. For every load clients open so
many chats, and once all of them decode, the processor time of each process is taken over some
seconds. Ticks are as long as it takes for nothing to be saturated: the tables say how long. It ends
within `--minutes`: what did not begin by then is told as not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench.cost import processor_time
from bench.cost.backend import MODEL
from bench.cost.gateways import GATEWAYS, Gateway, relaying
from bench.cost.load import Job
from bench.cost.measuring import Cost, Load, clients, idle, measure
from bench.cost.mesh import cost_mesh
from bench.harness import Run, parser, quantile, start
from bench.harness.processes import read_json, write_json

CHATS: Final = (1, 16, 64, 256, 1000)
QUICK_CHATS: Final = (1, 16, 64)
TICK_MS: Final = 50.0
"""Of an engine call where many chats are carried: 20 tokens a second and chat without drafts."""
_LEAST_TICK_MS: Final = 10.0
"""Of an engine call elsewhere: a chat alone on a fast GPU."""
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


def _native(counts: Sequence[int]) -> list[Load]:
    return [Load(chats, provisional=shown) for chats in counts for shown in (False, True)]


def meshes(chosen: Sequence[Load]) -> list[list[Load]]:
    """Loads by the mesh that they share. Where drafts are right, each has one of its own: a replica
    remembers for hundreds of calls of one size what a row cost, and calls of the fake engine that
    take other times than before, with as many rows, look like rows that cost more."""
    plain = [load for load in chosen if not load.repetition]
    return [plain] * bool(plain) + [[load] for load in chosen if load.repetition]


def tick_ms(chats: int, max_commits_per_s: float) -> float:
    """100 calls a second, or fewer where so many chats would commit more than that."""
    return max(_LEAST_TICK_MS, chats / max_commits_per_s * 1e3)


async def beside_the_engine(
    run: Run, chosen: Sequence[Load], max_commits_per_s: float, seconds: float, until: float
) -> None:
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
                    tick = tick_ms(load.chats, max_commits_per_s)
                    costs.append(await measure(mesh, load, tick, seconds))
                    print(_progress(costs[-1]), file=sys.stderr, flush=True)
                except RuntimeError as error:
                    name = f"{load.chats} chats, {load.label}"
                    print(f"{name}: {error}", file=sys.stderr)
                    run.setting("not measured", **{name: str(error)})
    report(run, costs)
    table = run.table("Cores that a process uses without a chat", "edge", "router", "replica")
    table.add(*(without[role] for role in ("edge", "router", "replica")))
    run.figures["idle_cores"] = {role: round(used, 4) for role, used in without.items()}


def _progress(cost: Cost) -> str:
    parts = ", ".join(f"{role} {cost.us_per_token(role):.0f}" for role in ROLES)
    return f"{cost.load.chats} chats, {cost.load.label}: {parts} us; {cost.busy_cores:.2f} cores"


def report(run: Run, costs: Sequence[Cost]) -> None:
    """Tables and figures."""
    table = run.table(
        "Processor time of a committed token, us, by process, beside an engine that only waits",
        *("chats", "protocol", "client", "edge", "router", "replica: streams"),
        *("replica: scheduler", "tokens/s", "tokens per commit", "tick, ms", "cores busy"),
    )
    carried = run.table(
        "Committed tokens per second that one core of each process would carry",
        *("chats", "protocol", "client", "edge", "router", "replica: streams and scheduler"),
    )
    by_load: dict[str, dict[str, dict[str, float]]] = {}
    for cost in costs:
        each = {role: round(cost.us_per_token(role), 1) for role in ROLES}
        rates = (cost.num_tokens / cost.seconds, cost.num_tokens / max(1, cost.num_events))
        who = (cost.load.chats, cost.load.label)
        table.add(*who, *each.values(), *rates, cost.tick_ms, cost.busy_cores)
        replica = each["streams"] + each["scheduler"]
        carried.add(
            *who,
            *(round(cost.tokens_per_core_s(role)) for role in ("client", "edge", "router")),
            round(1e6 / max(1e-9, replica)),
        )
        by_load.setdefault(cost.load.label, {})[str(cost.load.chats)] = each
        if cost.num_failed:
            run.setting("failed", **{f"{cost.load.chats}, {cost.load.label}": cost.error})
    for label, by_chats in by_load.items():
        run.figures[f"us_per_token, {label}"] = by_chats
    plain = by_load.get(Load(1).label, {})
    run.figures["us_per_token"] = {
        role: {chats: each[role] for chats, each in plain.items()} for role in ROLES
    }
    run.figures["aims_us_per_token_at_64_chats"] = dict(AIMS_US)


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
            print(f"{_MANY_CHATS} chats at {TICK_MS:g} ms: {error}", file=sys.stderr)
            run.setting("not measured", **{f"{_MANY_CHATS} chats at {TICK_MS:g} ms": str(error)})
            return
    gaps = [gap / TICK_MS for gap in cost.gaps_ms]
    shares = [table.quantile(gaps, share) for share in (0.5, 0.95, 0.99)]
    rate = cost.num_tokens / cost.seconds
    table.add(load.label, len(gaps), *shares, rate, cost.busy_cores, cost.num_failed)
    run.figures["many_chats_itl_p99_over_tick"] = round(quantile(gaps, 0.99), 2)
    run.figures["many_chats_tokens_per_s"] = round(rate)
    run.figures["aim_itl_p99_over_tick"] = AIM_ITL
    run.samples("many chats, ITL over the tick", gaps, unit="ticks")


async def others(
    run: Run, counts: Sequence[int], max_per_s: float, seconds: float, until: float
) -> None:
    """Routers of others in the same units."""
    table = run.table(
        "Processor time of other routers to relay an event of one token as SSE, us",
        *("chats", "router", "us per token", "tokens/s per core", "tokens/s", "tick, ms"),
    )
    figures: dict[str, dict[str, float]] = {}
    for gateway in GATEWAYS:
        if not gateway.is_installed():
            print(f"{gateway.name}: not installed; {gateway.install}", file=sys.stderr)
            run.setting(gateway.name, took_no_part=f"not installed; {gateway.install}")
            continue
        run.setting(gateway.name, version=gateway.version, flags=gateway.flags)
        for chats in counts:
            tick = tick_ms(chats, max_per_s)
            try:
                if time.monotonic() > until:
                    raise RuntimeError(_TIME_IS_UP)
                us, rate = await relay_us(gateway, chats, tick, seconds)
            except (RuntimeError, OSError) as error:
                print(f"{gateway.name}, {chats} chats: {error}", file=sys.stderr)
                run.setting(gateway.name, **{f"{chats} chats": f"not measured: {error}"})
                continue
            table.add(chats, gateway.name, us, round(1e6 / us), rate, tick)
            figures.setdefault(gateway.name, {})[str(chats)] = round(us, 1)
    run.figures["others_us_per_token"] = figures


async def relay_us(
    gateway: Gateway, chats: int, tick: float, seconds: float
) -> tuple[float, float]:
    """Microseconds per event, and events per second."""
    async with relaying(gateway, tick) as up:
        job = Job("http", "127.0.0.1", up.port, chats, 1, False, model=MODEL)
        async with clients(job) as client:
            write_json(client, {})
            await read_json(client)
            before = processor_time.of_threads(up.pid)
            await asyncio.sleep(seconds)
            write_json(client, {})
            counts = await read_json(client)
            used = processor_time.between(before, processor_time.of_threads(up.pid))
    if not counts["events"]:
        raise RuntimeError(f"no events came: {counts['error']}")
    return used / 1e3 / counts["events"], counts["events"] / seconds


def main() -> int:
    made = parser("cost", __doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument(
        "--commits-per-s", type=float, default=800.0, help="of all chats together, at most"
    )
    made.add_argument("--chats", type=int, nargs="+", help="instead of those of a full run")
    made.add_argument("--minutes", type=float, default=25.0, help="in which all of it has to begin")
    made.add_argument(
        "--native", action="store_true", help="the native protocol, 64 chats on a connection, alone"
    )
    made.add_argument("--only", choices=("ours", "many", "others"), help="one part of it")
    arguments = made.parse_args()
    run = start("cost", arguments)
    counts = arguments.chats or (QUICK_CHATS if run.quick else CHATS)
    seconds = 4.0 if run.quick else 8.0
    begun, whole_s = time.monotonic(), arguments.minutes * 60
    chosen = [it for it in loads(counts) if not arguments.native or it in _native(counts)]
    parts = (arguments.only,) if arguments.only else ("ours", "many", "others")
    if "ours" in parts:
        until = begun + whole_s * _OURS_SHARE
        asyncio.run(beside_the_engine(run, chosen, arguments.commits_per_s, seconds, until))
    if "others" in parts:
        until = begun + whole_s * _OTHERS_SHARE
        asyncio.run(others(run, counts, arguments.commits_per_s, seconds, until))
    if "many" in parts and not run.quick:
        if time.monotonic() < begun + whole_s:
            asyncio.run(many(run, seconds))
        else:
            run.setting("not measured", **{f"{_MANY_CHATS} chats at {TICK_MS:g} ms": _TIME_IS_UP})
    run.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
