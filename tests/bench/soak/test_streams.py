"""How growth is judged, and the streams themselves in small."""

from __future__ import annotations

import random

import pytest

from bench.peers.routing.fleets import Pace
from bench.soak.streams import MAX_GROWTH_MB, Streams, growth_mb

MIB = 2**20 / 1e6


def test_growth_is_that_of_the_last_third_over_the_one_before_by_sessions() -> None:
    sessions = range(0, 9000, 100)
    assert growth_mb([100.0] * 90, sessions) == 0.0
    assert growth_mb([100.0 + 0.002 * n for n in sessions], sessions) == pytest.approx(2 * MIB)
    assert growth_mb([100.0 - 0.001 * n for n in sessions], sessions) == pytest.approx(-MIB)


def test_what_grows_in_the_first_third_alone_is_not_counted() -> None:
    sessions = list(range(0, 9000, 100))
    rss = [90.0 + min(number, 2900) / 290 for number in sessions]
    assert growth_mb(rss, sessions) == 0.0


def test_single_samples_that_jump_do_not_matter_but_a_leak_of_a_kilobyte_or_two_does() -> None:
    chance, sessions = random.Random(1), list(range(0, 6000, 20))
    noise = [chance.choice((0.0, 0.0, 0.0, 0.4, 8.0)) for _ in sessions]
    assert growth_mb([90.0 + jump for jump in noise], sessions) < MAX_GROWTH_MB / 2
    leaking = [90.0 + 0.002 * n + jump for n, jump in zip(sessions, noise, strict=True)]
    assert growth_mb(leaking, sessions) > MAX_GROWTH_MB


def test_a_run_without_sessions_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="too short"):
        growth_mb([100.0] * 9, [5] * 9)


async def test_streams_stay_as_many_and_end_whole() -> None:
    streams = Streams(12, 1, Pace(1.0, 0.0))
    totals = await streams.run(1.0, warm_up_s=0.2, warm_up_sessions=15)
    assert totals.num_over[0] >= 15
    assert totals.num_over == sorted(totals.num_over)
    assert totals.ends["finished"] >= 15
    assert set(totals.ends) == {"finished"}
    assert totals.wrong == 0
    assert set(totals.rss_mib) == {"router", "replica"}
    assert all(sample > 1 for samples in totals.rss_mib.values() for sample in samples)
