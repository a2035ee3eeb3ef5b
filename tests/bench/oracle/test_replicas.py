"""The model of a replica beside the real scheduler, and the omniscient placement's forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import pytest

from bench.oracle.omniscient import Omniscient, World, least_ttft_ms
from bench.oracle.replicas import CACHE_BLOCKS, MAX_SESSIONS, ModelReplica, Speed
from bench.scale.calls import CallTimes
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, Ask, Demand
from bench.scale.fleet import Served
from bench.scale.regions import LOCAL_RTT_MS, REGIONS
from bench.scale.replicas import Hooks, Replica
from bench.scale.routers import Site
from outrider.errors import NoReplicaError
from services.inference.kv.events import Stored

TIMES = CallTimes({rows: [8.0 + 0.8 * rows] * 10 for rows in (2, 256)}, 0.05)


def model(clock: Clock, hooks: Hooks) -> Served:
    return ModelReplica(clock, TIMES, Speed(TIMES), hooks, 1)


def scheduler(clock: Clock, hooks: Hooks) -> Served:
    return Replica(clock, TIMES, hooks, 1)


def served(make: Callable[[Clock, Hooks], Served], rate: float, seconds: float) -> list[Ask]:
    """Requests of five groups at one replica, all ended."""
    clock = Clock()

    def committed(ask: Ask, count: int) -> None:
        ask.committed += count
        ask.first_at = ask.first_at or clock.now

    def finished(ask: Ask) -> None:
        ask.ended_at = clock.now

    def refused(ask: Ask, reason: str) -> None:
        raise AssertionError(reason)

    replica = make(clock, Hooks(committed, finished, refused))
    asks = list(Demand(REGIONS[:1], rate, seconds, num_groups=5, seed=3, diurnal=False).asks())
    for ask in asks:
        clock.at(ask.at, replica.open, ask)
    clock.run(seconds + 60.0)
    load = replica.load()
    assert (load.running_sessions, load.queued_sessions) == (0, 0)
    return asks


@pytest.mark.parametrize("rate", [4.0, 8.0])
def test_it_serves_as_the_scheduler_does(rate: float) -> None:
    modelled, real = served(model, rate, 60.0), served(scheduler, rate, 60.0)
    for ask in (*modelled, *real):
        assert ask.committed == ask.reply_tokens
        assert ask.ended_at >= ask.first_at > ask.at

    def mean(of: Callable[[Ask], float], asks: Sequence[Ask]) -> float:
        return fmean(map(of, asks))

    assert mean(lambda it: it.cached_tokens, modelled) == pytest.approx(
        mean(lambda it: it.cached_tokens, real), rel=0.05
    )
    for of in (lambda it: it.ttft_ms, lambda it: it.ended_at - it.at):
        assert mean(of, modelled) == pytest.approx(mean(of, real), rel=0.2)


def test_its_cache_is_bounded_and_tells_what_it_holds() -> None:
    clock = Clock()
    hooks = Hooks(lambda ask, count: None, lambda ask: None, lambda ask, reason: None)
    replica = ModelReplica(clock, TIMES, Speed(TIMES), hooks, 1)
    demand = Demand(REGIONS[:1], 10.0, 20.0, num_groups=100, seed=1, diurnal=False)
    held: set[bytes] = set()
    for ask in demand.asks():
        clock.at(ask.at, replica.open, ask)
    for second in range(60):
        clock.run(float(second))
        for event in replica.take_blocks():
            if isinstance(event, Stored):
                assert held.isdisjoint(event.hashes)
                held.update(event.hashes)
            else:
                assert held.issuperset(event.hashes)
                held.difference_update(event.hashes)
        assert replica.load().kv_blocks_free >= 0
    assert 0 < len(held) <= CACHE_BLOCKS


def distinct(number: int, at: float, num_tokens: int, reply_tokens: int) -> Ask:
    hashes = tuple(bytes([number, block]) for block in range(num_tokens // BLOCK_TOKENS))
    return Ask(number, at, 0, (number,) * num_tokens, hashes, reply_tokens)


@pytest.mark.parametrize("num_running", [0, 1, 5, MAX_SESSIONS + 3])
def test_a_first_token_comes_when_it_was_foretold(num_running: int) -> None:
    clock = Clock()
    asked = distinct(200, 0.5, 320, 8)

    def committed(ask: Ask, count: int) -> None:
        ask.first_at = ask.first_at or clock.now

    hooks = Hooks(committed, lambda ask: None, lambda ask, reason: None)
    replica = ModelReplica(clock, TIMES, Speed(TIMES), hooks, 1)
    for number in range(num_running):
        replica.open(distinct(number, 0.0, 160, 40))
    clock.run(0.5)
    foretold = replica.first_token_at(asked, 0.52, (), 1e9)
    clock.at(0.52, replica.open, asked)
    clock.run(60.0)
    call_s = TIMES.mean_ms(256, MAX_SESSIONS) / 1e3
    assert foretold == pytest.approx(asked.first_at, abs=call_s if num_running else 1e-6)


def test_the_omniscient_placement_takes_the_earliest_first_token() -> None:
    clock, world = Clock(), World(TIMES)
    hooks = Hooks(lambda ask, count: None, lambda ask: None, lambda ask, reason: None)
    router = Omniscient(world)
    with pytest.raises(NoReplicaError):
        router.place(distinct(1, 0.0, 64, 4), 0.0)
    for name, rtt_ms in (("near", 1.0), ("far", 80.0)):
        world.make_replica(name, clock, TIMES, hooks, 1)
        router.connect(Site(name, name, rtt_ms), 0.0)
    assert router.place(distinct(1, 0.0, 64, 4), 0.0) == "near"
    for number in range(2, 40):
        world.replicas["near"].open(distinct(number, 0.0, 256, 20))
    assert router.place(distinct(50, 0.0, 64, 4), 0.0) == "far"
    router.lose("far", 0.0)
    assert router.place(distinct(51, 0.0, 64, 4), 0.0) == "near"


def test_what_is_on_its_way_counts() -> None:
    clock, world = Clock(), World(TIMES)
    hooks = Hooks(lambda ask, count: None, lambda ask: None, lambda ask, reason: None)
    routers = [Omniscient(world), Omniscient(world)]
    for name in ("one", "two"):
        world.make_replica(name, clock, TIMES, hooks, 1)
        for router in routers:
            router.connect(Site(name, "here", 1.0), 0.0)
    chosen = [router.place(distinct(n, 0.0, 512, 8), 0.0) for n, router in enumerate(routers)]
    assert set(chosen) == {"one", "two"}, "the second router knows what the first one sent"


def test_no_first_token_is_earlier_than_the_bound() -> None:
    asked = distinct(1, 0.0, 512, 4)
    assert least_ttft_ms(asked, TIMES, 480) == LOCAL_RTT_MS + TIMES.ms(32, 1, 0.0)
    assert least_ttft_ms(asked, TIMES, 0) == LOCAL_RTT_MS + TIMES.ms(512, 1, 0.0)
