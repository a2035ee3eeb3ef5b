"""What is refused again and again fills no log."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from outrider.telemetry.refusals import RefusalLog
from outrider.testing import eventually


async def test_a_flood_of_refusals_is_two_lines() -> None:
    structlog.reset_defaults()
    with capture_logs() as lines:
        refused = RefusalLog("streams", interval_s=0.05)
        for _ in range(1000):
            refused.note("FULL")
        refused.note("BAD", error="the last one")
        await eventually(lambda: len(lines) == 2)
        refused.close()
    first, second = lines
    assert (first["what"], first["num_by_reason"]) == ("streams", {"FULL": 1})
    assert (second["num_by_reason"], second["error"]) == ({"FULL": 999, "BAD": 1}, "the last one")
