"""What routers are told of a replica's load, and edges of its pace."""

from __future__ import annotations

import pytest

from outrider.codec.tokens import TokenCoder
from services.inference.scheduler.types import Committed, Load
from services.inference.streaming import wire


def load_at(level: int) -> Load:
    return Load(
        running_sessions=0,
        queued_sessions=0,
        queued_prompt_tokens=0,
        kv_blocks_total=8,
        kv_blocks_free=8,
        fixed_ms=10.0,
        row_ms=1.0,
        max_sessions=4,
        overload_level=level,
    )


@pytest.mark.parametrize(
    ("level", "queues_low", "refuses"),
    [(0, False, False), (2, False, False), (3, True, False), (4, True, True)],
)
def test_a_report_says_whom_an_overloaded_replica_takes(
    level: int, queues_low: bool, refuses: bool
) -> None:
    report = wire.load_response(load_at(level), draining=False)
    assert (report.overload_level, report.queues_low, report.refuses_sessions) == (
        level,
        queues_low,
        refuses,
    )


def test_an_edge_is_told_of_a_pace_that_it_does_not_know() -> None:
    coder = TokenCoder(b"digest", 64)
    contract = wire.Contract("m", "r", "", b"", b"", 64, coder, 100, "fake", 16, 32, 8)
    told = wire.ToldPace()

    def news(
        interval_ms: float, row_ms: float = 1.0, level: int = 0, echo: wire.Echo = wire.NO_ECHO
    ) -> tuple[float, float, int, int, int] | None:
        event = Committed(1, 0, 0, 0, (5,), interval_ms, row_ms)
        pace = told.news(event, load_at(level), contract, echo, 2.0)
        if pace is None:
            return None
        times = round(pace.commit_interval_ms, 3), round(pace.row_ms, 3)
        return (*times, pace.max_lead, pace.overload_level, pace.echo)

    assert news(0.0) == (0.0, 1.0, 32, 0, 0), "the first commit says so in any case"
    assert news(40.0) == (40.0, 1.0, 32, 0, 0)
    assert news(40.0) is None and news(41.0) is None
    assert news(42.5) == (42.5, 1.0, 32, 0, 0), "by what it was told, not by the last one"
    assert news(42.5, row_ms=0.5) == (42.5, 0.5, 32, 0, 0)
    assert news(42.5, row_ms=0.5, level=1) == (42.5, 0.5, 32, 1, 0)
    assert news(42.5, row_ms=0.5, level=1, echo=wire.Echo(7, 1.0)) == (42.5, 0.5, 32, 1, 7)
    assert news(42.5, row_ms=0.5, level=1) is None
