"""Every shard comes from a source that has it, whatever the others do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from outrider.mirrors.plan import FIRST_PAUSE_S, MAX_FAILURES, Fetch, FetchPlan, Wait

SIZE = 10
"""Bytes of a shard."""


def first(plan: FetchPlan, now: float = 0.0) -> Fetch:
    found = plan.next(now)
    assert isinstance(found, Fetch)
    return found


def test_the_first_source_is_asked_until_it_breaks_off_and_then_the_next() -> None:
    plan = FetchPlan(3, ["peer", "bucket"])
    a, b = first(plan), first(plan)
    assert (a, b) == (Fetch(0, 0, 0), Fetch(1, 0, 0))
    plan.broke_off(a, 0, "reset", 0.0)
    assert first(plan) == Fetch(0, 1, 0), "meanwhile another source gives it"
    plan.finished(b)
    assert first(plan, 1.0) == Fetch(2, 0, 0), "the pause is over"


def test_a_shard_that_broke_off_is_gone_on_with_at_its_own_source() -> None:
    plan = FetchPlan(1, ["peer", "bucket"])
    plan.broke_off(first(plan), 7, "reset", 0.0)
    step = plan.next(0.0)
    assert isinstance(step, Wait)
    assert 0.0 < step.until < math.inf, "the bucket would begin anew"
    assert plan.next(step.until) == Fetch(0, 0, 7)


def test_what_a_dropped_source_began_is_begun_anew_elsewhere() -> None:
    plan = FetchPlan(2, ["peer", "bucket"])
    a, b = first(plan), first(plan)
    plan.broke_off(a, 7, "reset", 0.0)
    plan.refused(b, "another digest")
    assert {first(plan), first(plan)} == {Fetch(0, 1, 0), Fetch(1, 1, 0)}


def test_a_source_is_dropped_after_failures_without_a_byte_between_them() -> None:
    plan, now = FetchPlan(1, ["peer"]), 0.0
    for got in (0, 3, 3, 5, *[5] * (MAX_FAILURES - 2)):
        step = plan.next(now)
        assert isinstance(step, Fetch), plan.problem
        plan.broke_off(step, got, "reset", now)
        now += 60.0
    step = plan.next(now)
    assert isinstance(step, Fetch), "a byte came five failures ago"
    plan.broke_off(step, 5, "reset", now)
    assert plan.problem == "peer: reset"
    assert plan.next(now) is None


def test_a_pause_of_a_source_counts_once_however_many_connections_it_breaks() -> None:
    plan, now = FetchPlan(20, ["peer"]), 0.0
    num_asked = 0
    while not plan.problem:
        fetches = [first(plan, now) for _ in range(8)]
        for fetch in fetches:
            plan.broke_off(fetch, fetch.offset, "refused", now)
        num_asked += 1
        step = plan.next(now)
        if isinstance(step, Wait):
            now = step.until
    assert num_asked == MAX_FAILURES
    assert now == sum(FIRST_PAUSE_S * 2**it for it in range(MAX_FAILURES - 1))
    assert round(now) == 8


def test_what_else_a_pause_breaks_is_gone_on_with_where_it_was() -> None:
    plan = FetchPlan(2, ["peer"])
    for fetch in (first(plan), first(plan)):
        plan.broke_off(fetch, 7, "reset", 0.0)
    step = plan.next(0.0)
    assert isinstance(step, Wait)
    a, b = first(plan, step.until), first(plan, step.until)
    for fetch in (a, b):
        plan.broke_off(fetch, 7, "refused", step.until)
    assert {first(plan, 60.0), first(plan, 60.0)} == {Fetch(0, 0, 7), Fetch(1, 0, 7)}


def test_a_shard_that_nobody_has_ends_the_plan_at_once() -> None:
    plan = FetchPlan(5, ["peer", "bucket"])
    plan.lacks(first(plan))
    assert not plan.problem
    fetch = first(plan)
    assert fetch == Fetch(0, 1, 0)
    plan.lacks(fetch)
    assert plan.next(0.0) is None
    assert "peer: has no shard 0" in plan.problem
    assert "bucket: has no shard 0" in plan.problem


def test_a_slow_source_is_asked_last_from_then_on() -> None:
    plan = FetchPlan(3, ["peer", "bucket"])
    fetch = first(plan)
    assert plan.has_other(fetch, 0.0)
    plan.too_slow(fetch)
    assert [first(plan).source for _ in range(3)] == [1, 1, 1]
    assert not FetchPlan(1, ["peer"]).has_other(Fetch(0, 0, 0), 0.0)


@given(
    num_shards=st.integers(1, 6),
    num_sources=st.integers(1, 4),
    connections=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_each_source_is_left_once_at_most_for_being_slow_with_a_shard(
    num_shards: int, num_sources: int, connections: int, order: Random
) -> None:
    """All are slow with everything: what one of them began would be fetched anew without end."""
    plan = FetchPlan(num_shards, [str(place) for place in range(num_sources)])
    in_flight, asked = list[Fetch](), list[tuple[int, int]]()
    while not plan.is_over:
        step = plan.next(0.0) if len(in_flight) < connections else Wait(math.inf)
        if isinstance(step, Fetch):
            in_flight.append(step)
            asked.append((step.shard, step.source))
            assert len(set(asked)) == len(asked), "left before"
            continue
        fetch = in_flight.pop(order.randrange(len(in_flight)))
        if plan.has_other(fetch, 0.0):
            plan.too_slow(fetch)
        else:
            plan.finished(fetch)
    assert not plan.problem
    assert len(asked) <= num_shards * num_sources


def test_a_shard_waits_for_a_source_that_may_be_faster_with_it() -> None:
    """It would be left again, with all that came of the shard, once the other one is there."""
    plan = FetchPlan(2, ["peer", "bucket"])
    slow, other = first(plan), first(plan)
    plan.too_slow(slow)
    fetch = first(plan)
    assert fetch == Fetch(0, 1, 0)
    plan.broke_off(fetch, 0, "reset", 0.0)
    assert not plan.has_other(other, 0.0)
    step = plan.next(0.0)
    assert isinstance(step, Wait)
    assert plan.next(step.until) == Fetch(0, 1, 0)
    plan.refused(Fetch(0, 1, 0), "another digest")
    assert first(plan, step.until) == Fetch(0, 0, 0), "slow, but nobody else has it"


def test_no_source_and_nothing_to_fetch() -> None:
    assert FetchPlan(1, []).problem == "there is no source"
    assert FetchPlan(0, []).is_over
    assert FetchPlan(2, ["peer"], have=[0, 1]).next(0.0) is None


@dataclass(frozen=True)
class Behaviour:
    """What a source does with each request: a part of the shard, in tenths, or another end."""

    parts: tuple[int, ...]
    lacking: frozenset[int]
    lies_from: int
    """From its so-many-th whole shard on."""


BEHAVIOURS = st.builds(
    Behaviour,
    st.lists(st.integers(0, SIZE), min_size=1, max_size=5).map(tuple),
    st.frozensets(st.integers(0, 5)),
    st.integers(0, 20),
)


@given(
    num_shards=st.integers(0, 6),
    have=st.frozensets(st.integers(0, 5)),
    sources=st.lists(BEHAVIOURS, max_size=3),
    has_good=st.booleans(),
    connections=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_a_plan_ends_with_every_shard_if_one_source_is_good(
    num_shards: int,
    have: frozenset[int],
    sources: list[Behaviour],
    has_good: bool,
    connections: int,
    order: Random,
) -> None:
    if has_good:
        sources = [*sources, Behaviour((SIZE,), frozenset(), 10**6)]
    plan = FetchPlan(num_shards, [str(place) for place in range(len(sources))], have)
    there, in_flight, asked, wholes = set(have), list[Fetch](), [0] * 9, [0] * 9
    now, kept = 0.0, dict[int, tuple[int, int]]()
    while not plan.is_over:
        step = plan.next(now) if len(in_flight) < connections else Wait(math.inf)
        if isinstance(step, Fetch):
            assert step.shard not in there, "nothing is fetched twice"
            assert step.shard not in {it.shard for it in in_flight}
            source, num_bytes = kept.get(step.shard, (step.source, 0))
            assert step.offset in (0, num_bytes if source == step.source else 0)
            in_flight.append(step)
            continue
        assert step is not None
        if not in_flight:
            assert math.isfinite(step.until), "somebody can be asked"
            now = step.until
            continue
        fetch = in_flight.pop(order.randrange(len(in_flight)))
        behaviour = sources[fetch.source]
        part = behaviour.parts[asked[fetch.source] % len(behaviour.parts)]
        asked[fetch.source] += 1
        got = max(fetch.offset, part)
        kept.pop(fetch.shard, None)
        if fetch.shard in behaviour.lacking:
            plan.lacks(fetch)
        elif got < SIZE:
            kept[fetch.shard] = (fetch.source, got)
            plan.broke_off(fetch, got, "reset", now)
        elif wholes[fetch.source] >= behaviour.lies_from:
            plan.refused(fetch, "another digest")
        else:
            wholes[fetch.source] += 1
            there.add(fetch.shard)
            plan.finished(fetch)
    assert plan.problem or there >= set(range(num_shards))
    if has_good:
        assert not plan.problem
