"""What routers are told of a replica's load, edges of its pace, and both of final tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.codec.tokens import TokenCoder
from outrider.session.region import Commit
from services.inference.kv_tiers.tiers import TierCounts
from services.inference.scheduler.types import ClassLoad, KvHits, SchedulerLoad, SessionCommit
from services.inference.streaming import wire


def load_at(level: int) -> SchedulerLoad:
    return SchedulerLoad(
        running_sessions=0,
        queued_sessions=0,
        queued_prompt_tokens=0,
        kv_blocks_total=8,
        kv_blocks_free=8,
        fixed_ms=10.0,
        row_ms=1.0,
        max_sessions=4,
        max_queue=0,
        overload_level=level,
    )


@pytest.mark.parametrize(
    ("level", "queues_low", "refuses"),
    [(0, False, False), (2, False, False), (3, True, False), (4, True, True)],
)
def test_a_report_says_whom_an_overloaded_replica_takes(
    level: int, queues_low: bool, refuses: bool
) -> None:
    report = wire.load_response(load_at(level), {}, draining=False)
    assert (report.overload_level, report.queues_low, report.refuses_sessions) == (
        level,
        queues_low,
        refuses,
    )


LOAD = SchedulerLoad(
    running_sessions=2,
    queued_sessions=1,
    queued_prompt_tokens=100,
    kv_blocks_total=200,
    kv_blocks_free=100,
    fixed_ms=10.0,
    row_ms=1.0,
    max_sessions=4,
    max_queue=0,
    service_ms=500.0,
)


@pytest.mark.parametrize(
    ("changes", "is_news"),
    [
        ({}, False),
        ({"running_sessions": 3}, True),
        ({"queued_sessions": 0}, True),
        ({"queued_prompt_tokens": 99}, True),
        ({"paused_sessions": 1}, True),
        ({"overload_level": 1}, True),
        ({"low": ClassLoad(sessions=1)}, True),
        ({"fixed_ms": 10.9, "row_ms": 0.95, "service_ms": 540.0}, False),
        ({"fixed_ms": 11.5}, True),
        ({"row_ms": 0.8}, True),
        ({"is_cost_guessed": True}, True),
        ({"service_ms": 0.0}, True),
        ({"kv_blocks_free": 81}, False),
        ({"kv_blocks_free": 80}, True),
        ({"kv_blocks_owed": 19}, False),
        ({"kv_blocks_owed": 20}, True),
        ({"low": ClassLoad(kv_blocks=19)}, False),
        ({"low": ClassLoad(kv_blocks=20)}, True),
        ({"reply_tokens": 30}, True),
        ({"kv_hits": KvHits(1000, 500)}, False),
    ],
)
def test_routers_are_told_what_they_would_place_sessions_by(
    changes: dict[str, Any], is_news: bool
) -> None:
    told, now = wire.load_response(LOAD, {}), wire.load_response(replace(LOAD, **changes), {})
    assert wire.is_news(now, told) == wire.is_news(told, now) == is_news


def test_draining_and_slower_transfers_are_news() -> None:
    same = {"peer": TierCounts(block_ms=10.0), "redis": TierCounts(num_bytes=5)}
    told = wire.load_response(LOAD, same)
    slower = same | {"peer": TierCounts(block_ms=12.0)}
    more = same | {"redis": TierCounts(num_bytes=50)}
    assert wire.is_news(wire.load_response(LOAD, slower), told)
    assert not wire.is_news(wire.load_response(LOAD, more), told)
    assert wire.is_news(wire.load_response(LOAD, same, draining=True), told)
    assert wire.is_news(wire.load_response(LOAD, same, restarting=True), told)


def test_an_edge_is_told_of_a_pace_that_it_does_not_know() -> None:
    coder = TokenCoder(b"digest", 64)
    contract = wire.Contract("m", "r", "", b"", b"", 64, coder, 100, "fake", 16, 32, 8)
    told = wire.SentPace()

    def news(
        interval_ms: float, row_ms: float = 1.0, level: int = 0, echo: wire.Echo = wire.NO_ECHO
    ) -> tuple[float, float, int, int, int] | None:
        event = SessionCommit(1, Commit(0, 0, 0, (5,)), interval_ms, row_ms)
        pace = told.update(event, load_at(level), contract, echo, 2.0)
        if pace is None:
            return None
        times = round(pace.interval_s * 1e3, 3), round(pace.row_s * 1e3, 3)
        return (*times, pace.max_lead, pace.overload_level, pace.echo)

    assert news(0.0) == (0.0, 1.0, 32, 0, 0), "the first commit says so in any case"
    assert news(40.0) == (40.0, 1.0, 32, 0, 0)
    assert news(40.0) is None and news(41.0) is None
    assert news(42.5) == (42.5, 1.0, 32, 0, 0), "by what it was told, not by the last one"
    assert news(42.5, row_ms=0.5) == (42.5, 0.5, 32, 0, 0)
    assert news(42.5, row_ms=0.5, level=1) == (42.5, 0.5, 32, 1, 0)
    assert news(42.5, row_ms=0.5, level=1, echo=wire.Echo(7, 1.0)) == (42.5, 0.5, 32, 1, 7)
    assert news(42.5, row_ms=0.5, level=1) is None
