"""Limits are checked, alone and against an engine."""

from __future__ import annotations

import math
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


@pytest.mark.parametrize(
    "name", ["max_sessions", "max_batch_tokens", "prefill_chunk_tokens", "max_tick_ms", "row_ms"]
)
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        SchedulerLimits(**{name: 0})


@pytest.mark.parametrize("name", ["max_queue", "max_draft_tokens", "max_lead", "ageing_s"])
def test_what_may_be_off_may_be_zero_but_not_negative(name: str) -> None:
    SchedulerLimits(**{name: 0})
    with pytest.raises(ConfigError, match=name):
        SchedulerLimits(**{name: -1})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_times_are_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="max_tick_ms"):
        SchedulerLimits(max_tick_ms=value)


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
