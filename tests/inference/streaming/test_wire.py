"""What routers are told of a replica's load."""

from __future__ import annotations

import pytest

from services.inference.scheduler.types import Load
from services.inference.streaming import wire


@pytest.mark.parametrize(
    ("level", "queues_low", "refuses"),
    [(0, False, False), (2, False, False), (3, True, False), (4, True, True)],
)
def test_a_report_says_whom_an_overloaded_replica_takes(
    level: int, queues_low: bool, refuses: bool
) -> None:
    load = Load(
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
    report = wire.load_response(load, draining=False)
    assert (report.overload_level, report.queues_low, report.refuses_sessions) == (
        level,
        queues_low,
        refuses,
    )
