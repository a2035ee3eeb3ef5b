"""The simulated fleet: every request ends, a seed decides all, an ideal one is linear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from bench.scale.calls import CallTimes
from bench.scale.demand import GROUPS_PER_REPLICA, Ask, Demand, Shape
from bench.scale.fleet import Fleet, FleetResult, FleetSetup
from bench.scale.regions import REGIONS, Region
from bench.scale.routers import MeshRouter, RoundRobin, Router

TIMES = CallTimes({rows: [8.0 + 0.8 * rows] * 10 for rows in (2, 256)}, 0.05)
SHORT = Shape(shared_tokens=96, own_tokens=32, reply_tokens=6)


def ours(own: Region, regions: Sequence[Region], seed: int) -> Router:
    return MeshRouter(own, regions, seed)


def in_turn(own: Region, regions: Sequence[Region], seed: int) -> Router:
    return RoundRobin(own.name)


def demand(setting: FleetSetup, rate: float, seconds: float = 8.0) -> Iterator[Ask]:
    num_groups = GROUPS_PER_REPLICA * setting.num_replicas
    how = {"num_groups": num_groups, "seed": setting.seed, "shape": SHORT, "warm_s": 1.0}
    return Demand(setting.regions, rate, seconds, **how).asks()  # type: ignore[arg-type]


@pytest.mark.parametrize("router", [ours, in_turn])
def test_every_request_ends_though_replicas_die(router: object) -> None:
    setting = FleetSetup(REGIONS[:3], 6, mtbf_s=8.0, repair_s=1.0)
    outcome = Fleet(setting, TIMES, router).run(demand(setting, 40.0))  # type: ignore[arg-type]
    assert outcome.num_deaths > 2
    assert outcome.num_moves > 0
    assert len(outcome.asks) > 300
    for ask in outcome.asks:
        assert ask.ended_at >= ask.first_at > ask.at
        assert ask.committed == ask.reply_tokens, "no token lost, none twice"
        assert not ask.error
        assert 0 <= ask.cached_tokens < len(ask.prompt)


def seen(outcome: FleetResult) -> list[tuple[float, float, int, int]]:
    return [(ask.first_at, ask.ended_at, ask.num_places, ask.cached_tokens) for ask in outcome.asks]


def test_the_same_seed_gives_the_same_run() -> None:
    setting = FleetSetup(REGIONS[:2], 4, mtbf_s=10.0, repair_s=1.0)
    runs = [Fleet(setting, TIMES, ours).run(demand(setting, 30.0, 5.0)) for _ in range(2)]
    assert seen(runs[0]) == seen(runs[1])
    other = replace(setting, seed=2)
    assert seen(Fleet(other, TIMES, ours).run(demand(other, 30.0, 5.0))) != seen(runs[0])


def evenly(count: int, rate: float) -> Iterator[Ask]:
    """Requests that share nothing, at equal distances."""
    for number in range(count):
        prompt = tuple(range(number, number + 64))
        yield Ask(number, number / rate, 0, prompt, (), 4)


@pytest.mark.parametrize("num_replicas", [2, 8])
def test_an_ideal_fleet_is_linear(num_replicas: int) -> None:
    """No network to speak of, no luck: each replica of many gets what the one got alone."""
    times = []
    for size in (1, num_replicas):
        setting = FleetSetup(REGIONS[:1], size)
        outcome = Fleet(setting, TIMES, in_turn).run(evenly(20 * size, 5.0 * size))
        times.append([round(ask.ttft_ms, 6) for ask in outcome.asks[::size]])
    assert times[1] == times[0]


def test_a_request_for_a_replica_that_just_died_goes_on_elsewhere() -> None:
    """The router learns of a death half a round trip later; what it sent until then is not lost."""
    far = (REGIONS[0], REGIONS[7])
    setting = FleetSetup(far, 2, mtbf_s=2.0, repair_s=0.5)
    outcome = Fleet(setting, TIMES, ours).run(demand(setting, 10.0, 10.0))
    assert outcome.num_deaths > 2
    assert all(ask.ended_at and ask.committed == ask.reply_tokens for ask in outcome.asks)


def test_prefixes_are_found_again_by_our_router_alone() -> None:
    setting = FleetSetup(REGIONS[:1], 6)
    hits = []
    for router in (ours, in_turn):
        outcome = Fleet(setting, TIMES, router).run(demand(setting, 30.0))
        cached = sum(ask.cached_tokens for ask in outcome.asks)
        hits.append(cached / sum(len(ask.prompt) for ask in outcome.asks))
    assert hits[0] > 1.2 * hits[1]
