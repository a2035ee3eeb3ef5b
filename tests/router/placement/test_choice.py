"""The least cost wins; near-equals share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.placement.placement import MAX_CONSIDERED, choose, ranked
from services.router.placement.replica_table import UnreportedSessions
from services.router.placement.types import PlacementPolicy
from tests.router.placement.fleet import ASK, BLOCK, LOAD, Town, replica

IDS = list(range(20 * BLOCK))


def test_the_nearer_of_two_idle_replicas_is_taken_and_explained() -> None:
    decision = Town(replica("far", rtt_ms=80.0), replica("near", rtt_ms=2.0)).decide()
    assert (decision.replica, decision.region, decision.num_able) == ("near", "us-east", 2)
    assert decision.considered == (("near", 112.0), ("far", 190.0))
    assert decision.wait.rtt_ms == 2.0
    assert decision.runner_up is not None
    assert (decision.runner_up.replica, decision.margin_ms) == ("far", 78.0)


def test_one_alone_has_no_runner_up() -> None:
    decision = Town(replica("a")).decide()
    assert (decision.runner_up, decision.margin_ms, decision.num_able) == (None, 0.0, 1)


def test_near_equals_share_by_the_better_of_two_random_ones() -> None:
    town = Town(
        *(replica(f"r{n}", rtt_ms=1.0 + n / 10) for n in range(5)),
        replica("out", rtt_ms=50.0),
        near_ms=5.0,
        seed=7,
    )
    got = Counter(town.decide().replica for _ in range(2000))
    assert got["out"] == 0
    assert got["r4"] == 0, "the worst of the near-equals never wins a comparison"
    # P(index i is the lower of two of five) = (4 - i) / 10.
    for index, share in enumerate((0.4, 0.3, 0.2, 0.1)):
        assert got[f"r{index}"] / 2000 == pytest.approx(share, abs=0.04)


def test_work_that_others_would_wait_for_has_a_price() -> None:
    """One replica has the prompt and a queue as long as computing it elsewhere, and a bit."""
    loads = (replace(LOAD, queued_prompt_tokens=20 * BLOCK), LOAD)
    for weight, expected in ((0.0, "idle"), (0.5, "warm")):
        town = Town(
            replica("warm", load=loads[0], reported_at=100.0),
            replica("idle", load=loads[1]),
            work_weight=weight,
        )
        town.hold("warm", IDS)
        assert town.decide(town.asking(IDS)).replica == expected


def test_the_price_rises_with_the_share_of_a_region_that_is_busy() -> None:
    """Another region's queues do not raise it. The region is that of the least wait."""
    busy = replace(LOAD, queued_prompt_tokens=20 * BLOCK)

    def chosen(*others: str) -> str:
        town = Town(
            replica("warm", load=busy, reported_at=100.0),
            replica("idle"),
            *(
                replica(f"b{n}", region=region, load=busy, reported_at=100.0)
                for n, region in enumerate(others)
            ),
            busy_work_weight=0.05,
        )
        town.hold("warm", IDS)
        return town.decide(town.asking(IDS)).replica

    # The warm one's queue is 10 ms longer than the work of 330 ms that it saves.
    assert chosen() == "idle"
    assert chosen("eu", "eu", "eu") == "idle"
    assert chosen("us-east", "us-east") == "warm"


def test_a_decision_lists_the_best_of_many() -> None:
    town = Town(*(replica(f"r{n}", rtt_ms=100.0 - n) for n in range(50)))
    decision = town.decide(ASK)
    assert [name for name, _ in decision.considered] == [
        f"r{49 - n}" for n in range(MAX_CONSIDERED)
    ]
    assert decision.num_able == 50


COSTS = st.lists(
    st.one_of(st.floats(0.0, 1e4), st.integers(0, 40).map(float), st.just(np.inf)),
    min_size=1,
    max_size=400,
).filter(lambda costs: min(costs) < np.inf)


@given(COSTS, st.floats(0.0, 50.0), st.integers(0, 5))
def test_choices_are_those_of_plain_rules(costs: list[float], near_ms: float, seed: int) -> None:
    """The least cost, or the better of two random ones among near-equals, first rows first."""
    finite = [row for row, cost in enumerate(costs) if cost < np.inf]
    expected = sorted(finite, key=lambda row: (costs[row], row))[:MAX_CONSIDERED]
    array = np.array(costs)
    best = ranked(array, min(len(finite), MAX_CONSIDERED))
    assert [costs[row] for row in best] == [costs[row] for row in expected]
    near = [row for row in finite if costs[row] <= costs[expected[0]] + near_ms]
    rng = Random(seed)
    wanted = expected[0]
    if len(near) > 2:
        one, other = rng.sample(range(len(near)), 2)
        wanted = min(near[one], near[other], key=lambda row: (costs[row], row))
    assert best[0] == expected[0]
    assert choose(array, best, PlacementPolicy(near_ms=near_ms), Random(seed)) == wanted


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 9), st.integers(1, 3)),
            st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
            st.tuples(st.just("reported"), st.integers(0, 9), st.just(0)),
        ),
        max_size=40,
    )
)
def test_sessions_sent_since_the_last_report_are_counted_by_class(
    steps: list[tuple[str, int, int]],
) -> None:
    sent = UnreportedSessions()
    known: dict[int, tuple[float, int]] = {}
    for now, (what, number, priority) in enumerate(steps):
        if what == "put":
            sent.put(number, 5.0, number, priority, float(now))
            known.pop(number, None)
            known[number] = float(now), priority
        elif what == "release":
            sent.release(number)
            known.pop(number, None)
        elif what == "reported":
            sent.reported(now - number + 0.5, 0.0)
            known = {n: it for n, it in known.items() if it[0] > now - number + 0.5}
        counts = [sum(it[1] >= least for it in known.values()) for least in (1, 2, 3)]
        assert sent.num_sessions == counts
        tokens = [sum(n for n, it in known.items() if it[1] >= least) for least in (1, 2, 3)]
        assert sent.kv_tokens == tokens
