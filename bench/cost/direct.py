"""What the direct path brings: a token's way and its price, through the router and past it.

    python -m bench.cost.direct

The mesh of `bench.cost`, twice in each round: as it is, and with commits that go straight from the
replica to the edge (docs/guides/direct-path.md). Latency is from the end of an engine call to the
commit at the client, on one machine: what it takes on the network is left out, a router's way there
and back among it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from statistics import median
from typing import Final

from bench.cost.__main__ import ROLES, tick_ms
from bench.cost.measuring import Cost, Load, idle, measure
from bench.cost.mesh import cost_mesh
from bench.harness import parser, quantile, start

WAYS: Final[Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]] = {
    "through the router": ({}, {}),
    "direct": ({"direct_path": "true"}, {"direct_path_regions": "local"}),
}
"""Settings of the edge, and of the router."""


async def measured(
    way: str, chats: int, commits_per_s: float, seconds: float
) -> tuple[Cost, float]:
    """One window, and the router's processor time in it without chats, us per token."""
    async with cost_mesh(*WAYS[way]) as mesh:
        without = await idle(mesh, seconds / 2)
        cost = await measure(mesh, Load(chats), tick_ms(chats, commits_per_s), seconds)
    return cost, without["router"] * cost.seconds * 1e6 / max(1, cost.num_tokens)


def main() -> int:
    made = parser("cost_direct", __doc__ or "")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--chats", type=int, default=64)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--commits-per-s", type=float, default=800.0, help="of all chats together")
    arguments = made.parse_args()
    run = start("cost_direct", arguments)
    rounds, seconds = (1, 3.0) if run.quick else (arguments.rounds, 8.0)
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    routers_us: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else list(WAYS)[::-1]:
            cost, idle_us = asyncio.run(
                measured(way, arguments.chats, arguments.commits_per_s, seconds)
            )
            found[way].append(cost)
            routers_us[way].append(cost.us_per_token("router") - idle_us)
            print(_progress(way, cost), file=sys.stderr, flush=True)
    table = run.table(
        f"{arguments.chats} chats: processor time of a committed token, us, and from the end of an "
        "engine call to its commits at the client, ms; medians of the rounds",
        *("way", "rounds", *ROLES, "router, idle left out"),
        *("p50, ms", "p95, ms", "tokens/s", "cores busy"),
    )
    for way, costs in found.items():
        us = {role: round(median(it.us_per_token(role) for it in costs), 1) for role in ROLES}
        latency = [
            median(quantile(it.latencies_ms, share) for it in costs) for share in (0.5, 0.95)
        ]
        rate = median(it.num_tokens / it.seconds for it in costs)
        busy = median(it.busy_cores for it in costs)
        by_tokens = round(median(routers_us[way]), 1)
        table.add(way, len(costs), *us.values(), by_tokens, *latency, rate, busy)
        run.figures[way] = {
            **{f"{role}_us_per_token": value for role, value in us.items()},
            "router_us_per_token_beside_idle": by_tokens,
            "latency_p50_ms": round(latency[0], 2),
            "latency_p95_ms": round(latency[1], 2),
        }
    run.finish()
    return 0


def _progress(way: str, cost: Cost) -> str:
    parts = ", ".join(f"{role} {cost.us_per_token(role):.0f}" for role in ROLES)
    p50, p95 = (quantile(cost.latencies_ms, share) for share in (0.5, 0.95))
    return f"{way}: {parts} us; {p50:.2f}, {p95:.2f} ms; {cost.busy_cores:.2f} cores"


if __name__ == "__main__":
    raise SystemExit(main())
