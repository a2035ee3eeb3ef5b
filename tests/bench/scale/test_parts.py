"""The simulator's parts: clock, regions, demand, recorded times, and how a study searches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.harness import Run
from bench.scale import study
from bench.scale.__main__ import FLAT, SAME_DAY, Plan, report
from bench.scale.bound import most_of_linear
from bench.scale.calls import SHARES, SIZES, CallTimes, recorded
from bench.scale.clock import Clock
from bench.scale.demand import BLOCK_TOKENS, Demand, Shape
from bench.scale.regions import LOCAL_RTT_MS, REGIONS, rtt_ms
from bench.scale.study import MET_SHARE, Case, CaseResult, Search, Task, capacity, run_search
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


def test_no_placement_passes_the_peak_of_its_day() -> None:
    def most(count: int, day_s: float) -> float:
        regions = REGIONS[:count]
        return most_of_linear(regions, day_s, objective_s=1.0, met_share=0.95)

    peak = max(REGIONS[0].demand(part / 96) for part in range(96))
    assert most(1, 86_400.0) == pytest.approx(1 / peak, abs=0.01), "a second's wait is nothing"
    assert most(1, 24.0) > most(1, 240.0) > 1 / peak, "a short evening is over before it is felt"
    assert most(1, 24.0) < most(2, 24.0) < most(6, 24.0), "evenings at different hours"


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


def row(rate: float, met_share: float) -> CaseResult:
    return row_of(Case(4, rate), met_share)


def row_of(case: Case, met_share: float) -> CaseResult:
    return CaseResult(case, 100, 0, met_share, (1.0, 2.0, 3.0), 0.5, 0.1, 0, 0)


def bears(limit: float) -> Callable[[Case], CaseResult]:
    """A fleet that just meets the objective at this load, and less of it the more there is."""
    return lambda case: row_of(case, min(1.0, MET_SHARE * limit / case.rate))


@pytest.mark.parametrize("first", [6.0, 7.9, 8.1, 11.0])
def test_a_search_closes_in_on_the_load_a_fleet_bears(first: float) -> None:
    search = Search(Case(4, first))
    rows = run_search(search, bears(8.0))
    assert capacity(rows) == pytest.approx(8.0, rel=0.01)
    assert {replace(row.case, rate=first) for row in rows} == {search.case}, "loads differ alone"


def test_a_search_gives_up_on_a_fleet_that_never_meets_the_objective() -> None:
    assert capacity(run_search(Search(Case(4, 8.0)), bears(0.01))) == 0.0


def plan() -> Plan:
    return Plan((10, 100), (1, 2), day_s=24.0, middle=10)


def test_all_have_the_same_day_and_every_seed() -> None:
    searches = plan().searches
    assert set(searches) == {FLAT, SAME_DAY, 10, 100}
    for name, found in searches.items():
        assert [search.case.seed for search in found] == [1, 2]
        for search in found:
            assert search.case.seconds == 24.0
            assert search.case.diurnal == (name != FLAT)


def test_lone_replicas_that_are_counted_together_have_days_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study, "WARM_S", 2.0)
    case = Case(1, 3.0, seconds=3.0, failures=False)
    together = study.run_case(replace(case, num_apart=3, seed=7))
    parts = [study.run_case(replace(case, seed=7000 + number)) for number in range(3)]
    assert together.num_requests == sum(part.num_requests for part in parts)
    assert together.num_requests > parts[0].num_requests
    met = sum(part.met_share * part.num_requests for part in parts)
    assert together.met_share == pytest.approx(met / together.num_requests)


def test_fleets_are_held_against_the_strongest_lone_replica_of_their_seed() -> None:
    made = plan()
    borne = {FLAT: 12.0, SAME_DAY: 8.0, 10: 6.0, 100: 9.0}
    rows: dict[Task, tuple[CaseResult, ...]] = {
        search: run_search(
            replace(search, case=replace(search.case, rate=borne[name] * search.case.seed)),
            bears(borne[name] * search.case.seed),
        )
        for name, searches in made.searches.items()
        for search in searches
    }
    others = [task for task in made.tasks if isinstance(task, Case)]
    rows |= {case: (row_of(case, 1.0),) for case in others}
    run = Run("scale", quick=True, command="")
    report(run, made, rows)
    assert run.figures["failed"] == 0
    rows_of = {row[0]: row for row in run.tables[0].rows}
    linear, same_day = (
        {name: float(str(row[at]).split()[0]) for name, row in rows_of.items()} for at in (3, 6)
    )
    assert linear["10 replicas"] == pytest.approx(0.5, abs=0.01)
    assert linear["100 replicas"] == pytest.approx(0.75, abs=0.01)
    assert same_day["10 replicas"] == pytest.approx(0.75, abs=0.02)
    assert same_day["100 replicas"] == pytest.approx(1.125, abs=0.02)
    assert len(rows_of) == 4
    assert rows_of[FLAT][4] == 1.0
    assert rows_of["10 replicas"][4] == pytest.approx(0.777, abs=0.01)


def test_capacity_lies_where_the_objective_ceases_to_be_met() -> None:
    assert capacity([row(3.0, 0.90), row(1.0, 1.0), row(2.0, 1.0)]) == pytest.approx(2.5)
    assert capacity([row(1.0, 0.94)]) == 0.0
    assert capacity([row(1.0, 1.0), row(2.0, 0.95)]) == 2.0
    assert capacity([row(1.0, 0.99), row(2.0, 0.5), row(3.0, 0.99)]) < 2.0


def test_a_case_is_run_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "WARM_S", 2.0)
    case = Case(2, 3.0, seconds=4.0)
    found = study.run_case(case)
    assert found.case == case
    assert found == study.run_case(case), "to the last digit"
    assert found.num_failed == 0
    assert found.num_requests == pytest.approx(24, abs=16)
    assert 0 < found.ttft_ms[0] <= found.ttft_ms[1] <= found.ttft_ms[2]
    assert 0 <= found.met_share <= 1
    assert not math.isnan(found.hit_rate)
