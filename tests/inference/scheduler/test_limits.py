"""Limits are checked, alone and against an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.engines.base import EngineInfo
from outrider.errors import ConfigError
from services.inference.scheduler.limits import SchedulerLimits, context_limit


def info(**changes: int) -> EngineInfo:
    base = EngineInfo(
        name="x",
        vocabulary_size=8,
        block_tokens=4,
        num_blocks=100,
        block_bytes=1,
        max_context_tokens=50,
        min_rows=2,
        scratch_tokens=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_full_house_leaves_room_for_a_prefill() -> None:
    limits = SchedulerLimits(max_sessions=8, max_batch_tokens=22)
    limits.check_fits(info(min_rows=2))
    with pytest.raises(ConfigError, match="at least 33"):
        limits.check_fits(info(min_rows=3))


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 50),
        ({"min_rows": 1}, 50),
        ({"min_rows": 4}, 48),
        ({"num_blocks": 10}, 39),
        ({"num_blocks": 10, "scratch_tokens": 0, "min_rows": 3}, 39),
    ],
)
def test_the_context_is_what_model_and_pool_can_hold(changes: dict[str, int], limit: int) -> None:
    assert context_limit(info(**changes)) == limit
