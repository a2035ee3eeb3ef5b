"""Packets under way, in virtual time."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.relay.lane import Conditions, Lane, Traffic
from outrider.testing import FakeClock

_CONDITIONS = st.builds(
    Conditions,
    delay_ms=st.floats(0, 500),
    jitter_ms=st.floats(0, 50),
    in_order=st.booleans(),
    loss=st.floats(0, 0.5),
    rate_mbit_s=st.one_of(st.just(0.0), st.floats(0.1, 1000)),
)
_GAPS_S = st.lists(st.floats(0, 0.1), min_size=1, max_size=40)


def drained(lane: Lane[int], clock: FakeClock) -> list[tuple[float, int]]:
    """When what arrives, from now to the end."""
    arrived = []
    while (at := lane.next_due()) is not None:
        clock.now = max(clock.now, at)
        arrived += [(clock.now, packet) for packet in lane.due(clock.now)]
    return arrived


def test_a_packet_takes_the_delay() -> None:
    lane: Lane[str] = Lane(ordered=False)
    lane.conditions = Conditions(delay_ms=50)
    lane.send("a", 10, 1.0)
    assert (lane.next_due(), lane.queued_bytes) == (1.05, 10)
    assert lane.due(1.049) == []
    assert lane.due(1.05) == ["a"]
    assert (lane.next_due(), lane.queued_bytes) == (None, 0)


def test_without_delay_a_packet_is_there_at_once() -> None:
    lane: Lane[str] = Lane(ordered=True)
    lane.send("a", 1, 5.0)
    assert lane.due(5.0) == ["a"]


@given(conditions=_CONDITIONS, gaps_s=_GAPS_S)
def test_every_packet_arrives_once_or_is_counted_as_lost(
    conditions: Conditions, gaps_s: list[float]
) -> None:
    lane: Lane[int] = Lane(ordered=False)
    lane.conditions = conditions
    clock, sent_at = FakeClock(), {}
    for number, gap_s in enumerate(gaps_s):
        if lane.send(number, 100, clock.advance(gap_s)):
            sent_at[number] = clock.now
    arrived = drained(lane, clock)
    assert sorted(packet for _, packet in arrived) == sorted(sent_at)
    traffic = lane.take_traffic()
    assert traffic.packets == len(gaps_s) == len(sent_at) + traffic.lost
    assert traffic.num_bytes == 100 * len(gaps_s)
    assert lane.queued_bytes == 0


@given(conditions=_CONDITIONS, gaps_s=_GAPS_S)
def test_a_byte_stream_keeps_its_order_and_loses_nothing(
    conditions: Conditions, gaps_s: list[float]
) -> None:
    lane: Lane[int] = Lane(ordered=True)
    lane.conditions = conditions
    clock, sent_at = FakeClock(), []
    for number, gap_s in enumerate(gaps_s):
        assert lane.send(number, 1, clock.advance(gap_s))
        sent_at.append(clock.now)
    clock.now = 0.0
    arrived = drained(lane, clock)
    assert [packet for _, packet in arrived] == list(range(len(gaps_s)))
    for (at, _), sent in zip(arrived, sent_at, strict=True):
        assert at >= sent + conditions.delay_ms / 1000 - 1e-9


def test_jitter_lets_datagrams_overtake_one_another_unless_they_stay_in_order() -> None:
    for in_order in (False, True):
        lane: Lane[int] = Lane(ordered=False)
        lane.conditions = Conditions(delay_ms=10, jitter_ms=10, in_order=in_order)
        for number in range(50):
            lane.send(number, 1, number / 1000)
        arrived = drained(lane, FakeClock())
        assert ([packet for _, packet in arrived] == list(range(50))) == in_order
        late_ms = [1000 * at - packet - 10 for at, packet in arrived]
        assert -1e-9 <= min(late_ms) and 7 < max(late_ms) <= 10 + 1e-9


def test_datagrams_are_lost_each_on_its_own() -> None:
    lane: Lane[int] = Lane(ordered=False)
    lane.conditions = Conditions(loss=0.3)
    sent = [number for number in range(1000) if lane.send(number, 1, 0.0)]
    assert 650 <= len(sent) <= 750
    assert lane.due(0.0) == sent
    assert lane.take_traffic().lost == 1000 - len(sent)


def test_a_loss_in_a_byte_stream_costs_a_timeout_and_holds_up_what_follows() -> None:
    lane: Lane[int] = Lane(ordered=True)
    lane.conditions = how = Conditions(delay_ms=40, jitter_ms=0, loss=0.1)
    assert how.retransmission_ms == 280, "a round trip of 80 ms, and 200 ms"
    for number in range(100):
        lane.send(number, 1000, number / 100)
    arrived = drained(lane, FakeClock())
    assert [packet for _, packet in arrived] == list(range(100))
    late_ms = [round(1000 * at - 10 * packet - 40) for at, packet in arrived]
    for before, late in itertools.pairwise([0, *late_ms]):
        assert late == max(0, before - 10) or late in (280, 280 + 560, 280 + 560 + 1120)
    assert 280 in late_ms and 0 in late_ms
    assert 5 <= lane.take_traffic().lost <= 18


def test_a_read_of_many_segments_is_late_if_one_of_them_is_lost() -> None:
    def num_late(num_bytes: int) -> int:
        lane: Lane[int] = Lane(ordered=True)
        lane.conditions = Conditions(loss=0.01)
        for number in range(500):
            lane.send(number, num_bytes, 0.0)
        return lane.take_traffic().lost

    assert num_late(1448) <= 15 and num_late(0) == 0
    assert 125 <= num_late(40 * 1448) <= 205, "1 - 0.99 ** 40 = 33 %"


def test_the_same_seed_draws_the_same() -> None:
    def fate(seed: int) -> list[tuple[float, int]]:
        lane: Lane[int] = Lane(seed, ordered=False)
        lane.conditions = Conditions(delay_ms=10, jitter_ms=50, loss=0.1)
        for number in range(50):
            lane.send(number, 1, 0.0)
        return drained(lane, FakeClock())

    assert fate(1) == fate(1) != fate(2)


def test_a_full_queue_drops_datagrams_and_never_bytes() -> None:
    datagrams: Lane[int] = Lane(ordered=False, max_bytes=100)
    stream: Lane[int] = Lane(ordered=True, max_bytes=100)
    for lane in (datagrams, stream):
        lane.conditions = Conditions(delay_ms=1000)
        lane.send(0, 100, 0.0)
        assert lane.full
    assert not datagrams.send(1, 1, 0.0)
    assert stream.send(1, 1, 0.0)
    assert (datagrams.take_traffic().dropped, stream.take_traffic().dropped) == (1, 0)


@given(rate_mbit_s=st.floats(0.1, 1000), gaps_s=_GAPS_S, is_ordered=st.booleans())
def test_a_link_carries_no_more_than_its_rate(
    rate_mbit_s: float, gaps_s: list[float], is_ordered: bool
) -> None:
    lane: Lane[int] = Lane(ordered=is_ordered)
    lane.conditions = Conditions(delay_ms=10, rate_mbit_s=rate_mbit_s)
    clock, expected, free_at = FakeClock(), [], 0.0
    for number, gap_s in enumerate(gaps_s):
        assert lane.send(number, 1000 * (number + 1), clock.advance(gap_s))
        free_at = max(free_at, clock.now) + 8000 * (number + 1) / (rate_mbit_s * 1e6)
        expected.append(free_at + 0.010)
    clock.now = 0.0
    arrived = drained(lane, clock)
    assert [packet for _, packet in arrived] == list(range(len(gaps_s)))
    assert [at for at, _ in arrived] == pytest.approx(expected)


def test_a_rate_that_is_lifted_holds_up_nothing_that_is_sent_later() -> None:
    lane: Lane[int] = Lane(ordered=False)
    lane.conditions = Conditions(rate_mbit_s=1)
    lane.send(0, 125_000, 0.0)
    lane.conditions = Conditions()
    lane.send(1, 125_000, 0.0)
    assert (lane.due(0.0), lane.due(0.999), lane.due(1.0)) == ([1], [], [0])


def test_lateness_is_measured() -> None:
    lane: Lane[int] = Lane(ordered=False)
    lane.conditions = Conditions(delay_ms=10)
    for late_ms in (0.0, 0.5, 1.0):
        lane.send(0, 1, 0.0)
        assert lane.due(0.010 + late_ms / 1000) == [0]
    traffic = lane.take_traffic()
    assert [traffic.lateness_ms(share) for share in (0.1, 0.5, 1.0)] == pytest.approx([0, 0.5, 1])
    assert lane.take_traffic() == Traffic()


def test_traffic_survives_json_and_adds_up() -> None:
    one = Traffic(packets=2, num_bytes=30, lost=1, dropped=1)
    one.left(0.25)
    copy = Traffic.from_json(json.loads(json.dumps(one.to_json())))
    assert copy == one
    copy.add(one)
    assert (copy.packets, copy.num_bytes, copy.lateness_ms(1.0)) == (4, 60, 0.25)


@pytest.mark.parametrize(
    "values", [{"delay_ms": -1.0}, {"jitter_ms": -1.0}, {"loss": 1.0}, {"rate_mbit_s": -1.0}]
)
def test_impossible_links_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no link"):
        Conditions(**values)
