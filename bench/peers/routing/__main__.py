"""Runs the comparison."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeAlias

import bench.peers.routing
from bench.harness import Run, parser, quantile, start
from bench.peers import smg
from bench.peers.lineup import rotated
from bench.peers.routing import fleets
from bench.peers.routing.fleets import NUM_REPLICAS, Client, Pace, serve
from bench.peers.routing.workload import NUM_GROUPS, Served, make_asks
from bench.scale.calls import recorded

RATES = (8.0, 12.0)
"""Requests a second of all replicas, with the engine as fast as it was measured."""
ROUNDS = 2
OURS = "outrider"
Open: TypeAlias = Callable[[Pace], AbstractAsyncContextManager[Client]]

CONTENDERS: dict[str, Open] = {
    OURS: fleets.outrider,
    "smg, cache_aware": partial(fleets.gateway, policy="cache_aware"),
    "smg, least_load": partial(fleets.gateway, policy="least_load"),
    "round robin": partial(fleets.balanced, least=False),
    "least outstanding": partial(fleets.balanced, least=True),
}


def main() -> int:
    flags = parser("peers.routing", bench.peers.routing.__doc__ or "")
    flags.add_argument("--rates", type=float, nargs="+", default=RATES, help="requests a second")
    arguments = flags.parse_args()
    run = start("routing", arguments)
    report(run, asyncio.run(_compete(_installed_routers(), arguments)))
    run.finish()
    return 0


Results: TypeAlias = dict[tuple[float, str], list[Served]]


def _installed_routers() -> dict[str, Open]:
    if smg.PEER.is_installed():
        return CONTENDERS
    print(f"{smg.PEER.name}: {smg.PEER.hint}", file=sys.stderr)
    return {name: it for name, it in CONTENDERS.items() if not name.startswith(smg.PEER.name)}


async def _compete(routers: dict[str, Open], arguments: argparse.Namespace) -> Results:
    """Round by round, another router first; each round has requests of its own."""
    pace, results = _pace(), Results()
    rates = arguments.rates[-1:] if arguments.quick else arguments.rates
    num_groups, rounds = (20, 1) if arguments.quick else (NUM_GROUPS, ROUNDS)
    for turn, rate in itertools.product(range(rounds), rates):
        for name in rotated(routers, turn):
            asks = make_asks(rate, num_groups, seed=1 + turn)
            async with routers[name](pace) as client:
                results.setdefault((rate, name), []).extend(await serve(client, asks))
            print(f"round {turn + 1} of {rounds}, {rate:g}/s: {name}", file=sys.stderr)
    return results


def _pace() -> Pace:
    """A line through the measured times of a reply's call and of a prompt's."""
    times, few, many = recorded(), 4, 256
    row_ms = (times.mean_ms(many, 0) - times.mean_ms(few, 0)) / (many - few)
    return Pace(times.mean_ms(few, 0) - few * row_ms, row_ms)


def report(run: Run, results: Results) -> None:
    """One row for each rate and router."""
    columns = ("requests/s", "router", "n", "TTFT p50, ms", "p90", "p99", "prefix hit rate")
    title = (
        f"Routers in front of {NUM_REPLICAS} replicas: time to first token and prefix hit rate, "
        "prompts in groups with a shared prefix"
    )
    table = run.table(title, *columns, "p50 over ours", "p90 over ours")
    for (rate, name), served in results.items():
        ttft_ms = _ttft_ms(served)
        p50, p90 = (quantile(ttft_ms, share) for share in (0.5, 0.9))
        hit = sum(s.cached_tokens for s in served) / sum(s.prompt_tokens for s in served)
        of_ours = _ttft_ms(results.get((rate, OURS), served))
        ours = [quantile(of_ours, share) for share in (0.5, 0.9)]
        tail = (table.quantile(ttft_ms, share) for share in (0.9, 0.99))
        cells = (len(ttft_ms), table.median(ttft_ms), *tail, round(hit, 3))
        table.add(rate, name, *cells, p50 / ours[0], p90 / ours[1])
        run.samples(f"TTFT, {name}, {rate:g}/s", ttft_ms, unit="ms")


def _ttft_ms(served: list[Served]) -> list[float]:
    return [one.ttft_s * 1e3 for one in served]


if __name__ == "__main__":
    sys.exit(main())
