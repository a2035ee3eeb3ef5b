"""What a replica is told of prompts that another one has cached."""

from __future__ import annotations

import pytest

from services.router.placement.types import Candidate, Decision, PredictedWait
from services.router.relay.dispatch import shared_prefix_tokens


@pytest.mark.parametrize(
    ("chosen", "other", "told"), [(0, 64, 64), (64, 64, 0), (64, 0, 0), (32, 96, 96), (0, None, 0)]
)
def test_more_at_another_replica_is_worth_telling(
    chosen: int, other: int | None, told: int
) -> None:
    wait = PredictedWait(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def candidate(name: str, cached: int) -> Candidate:
        return Candidate(name, "us", wait, cached)

    runner_up = None if other is None else candidate("b", other)
    assert shared_prefix_tokens(Decision(candidate("a", chosen), runner_up, (), 2)) == told
