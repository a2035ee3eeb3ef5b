"""The simulator's parts: clock, regions, demand, times of calls, and what a study makes of rows."""

from __future__ import annotations

import itertools
import math

import pytest

from bench.scale import study
from bench.scale.calls import SHARES, SIZES, CallTimes, recorded
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, Demand, Shape
from bench.scale.regions import LOCAL_RTT_MS, REGIONS, rtt_ms
from bench.scale.study import Case, Row, capacity
from outrider.codec.block_hashes import block_hashes


def test_calls_come_in_order_of_time_then_of_asking() -> None:
    clock, seen = Clock(), list[str]()
    clock.at(2.0, seen.append, "c")
    clock.at(1.0, seen.append, "a")
    clock.at(1.0, seen.append, "b")
    clock.run(1.5)
    assert (seen, clock.now) == (["a", "b"], 1.5)
    clock.at(0.0, seen.append, "late is now")
    clock.run(3.0)
    assert seen == ["a", "b", "late is now", "c"]


def test_round_trips_are_the_same_both_ways_and_not_faster_than_light() -> None:
    assert len({region.name for region in REGIONS}) == 12
    for a in REGIONS:
        assert rtt_ms(a, a) == LOCAL_RTT_MS
        for b in REGIONS:
            assert rtt_ms(a, b) == rtt_ms(b, a) > 0
    assert rtt_ms(REGIONS[0], REGIONS[1]) == 80.6
    assert rtt_ms(REGIONS[4], REGIONS[6]) == 194.9
    assert 100 < rtt_ms(REGIONS[10], REGIONS[5]) / 0.5 < 300


def test_a_region_has_one_evening_a_day_and_an_average_of_one() -> None:
    for region in REGIONS:
        hours = [region.demand(hour / 24) for hour in range(24)]
        assert sum(hours) / 24 == pytest.approx(1.0)
        assert max(hours) / min(hours) == pytest.approx(5.0, rel=0.05)


def test_demand_is_what_was_asked_for() -> None:
    regions, shape = REGIONS[:3], Shape(shared_tokens=64, own_tokens=32, reply_tokens=10)
    made = Demand(regions, 50.0, 60.0, num_groups=30, seed=1, shape=shape, warm_s=2.0)
    asks = list(made.asks())
    assert [ask.at for ask in asks] == sorted(ask.at for ask in asks)
    assert [ask.number for ask in asks] == list(range(1, len(asks) + 1))
    assert len({ask.hashes[:2] for ask in asks[:30]}) == 30, "each group once, to warm up"
    assert len(asks) - 30 == pytest.approx(3000, rel=0.1)
    lengths = [ask.reply_tokens for ask in asks]
    assert sum(lengths) / len(lengths) == pytest.approx(10, rel=0.15)
    for ask in asks[::100]:
        assert tuple(block_hashes(ask.prompt, BLOCK_TOKENS, b"")) == ask.hashes


def test_times_of_calls_are_drawn_from_what_was_measured() -> None:
    times = CallTimes({2: [10.0, 20.0], 4: [14.0, 24.0]}, 0.5)
    assert times.ms(2, 0, 0.0) == 10.0
    assert times.ms(3, 2, 0.9) == 23.0
    assert times.ms(6, 0, 0.0) == 18.0, "beyond what was measured the slope goes on"
    assert times.mean_ms(4, 0) == 19.0
    real = recorded()
    for rows in SIZES:
        drawn = [real.ms(rows, 0, (i + 0.5) / len(SHARES)) for i in range(len(SHARES))]
        assert drawn == sorted(drawn) and drawn[0] > 0
    assert all(real.mean_ms(a, 1) < real.mean_ms(b, 1) for a, b in itertools.pairwise(SIZES))


def row(rate: float, met_share: float) -> Row:
    case = Case(4, rate)
    return Row(
        case, 100, 0, met_share, (1.0, 1.0, 1.0), (1.0, 2.0, 3.0), 0.5, 0.1, 0, 0, (1.0, 2.0)
    )


def test_capacity_lies_where_the_objective_ceases_to_be_met() -> None:
    assert capacity([row(3.0, 0.90), row(1.0, 1.0), row(2.0, 1.0)]) == pytest.approx(2.5)
    assert capacity([row(1.0, 0.94)]) == 0.0
    assert capacity([row(1.0, 1.0), row(2.0, 0.95)]) == 2.0
    assert capacity([row(1.0, 0.99), row(2.0, 0.5), row(3.0, 0.99)]) < 2.0


def test_a_case_is_run_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "WARM_S", 2.0)
    case = Case(2, 3.0, seconds=4.0, num_regions=2)
    found = study.run_case(case)
    assert found.case == case
    assert found.num_failed == 0
    assert found.num_requests == pytest.approx(24, abs=16)
    assert 0 < found.ttft_ms[0] <= found.ttft_ms[1] <= found.ttft_ms[2]
    assert 0 <= found.met_share <= 1
    assert not math.isnan(found.hit_rate)
    assert set(study.without(case)) > {"as it is"}
