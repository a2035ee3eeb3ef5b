"""How far replicas are taken up."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.conductor.conductor import Fleet, Post
from services.router.conductor.fleets import fleets, utilization
from services.router.fleet.load import Load


class Row:
    """As much of a replica as the conductor reads."""

    def __init__(
        self, region: str, load: Load | None, *, model: str = "m", up: bool = True
    ) -> None:
        self.region, self.model_name, self.load, self.takes_sessions = region, model, load, up


def test_posts_are_regions_and_models_of_replicas_that_serve() -> None:
    busy = Load(running_sessions=6, queued_sessions=2, max_sessions=8)
    idle = Load(max_sessions=8)
    rows: list[Any] = [
        Row("us", busy),
        Row("us", idle),
        Row("us", busy, up=False),
        Row("eu", None),
        Row("eu", busy, model="other"),
        Row("", busy),
        Row("us", busy, model=""),
    ]
    found = fleets(rows, {Post("us", "m"): 4, Post("us", "other"): 9}, 120.0)
    assert found == {
        Post("us", "m"): Fleet(2, 12 / 16),
        Post("eu", "m"): Fleet(1, 0.0),
        Post("eu", "other"): Fleet(1, 1.0),
    }


@pytest.mark.parametrize(
    ("loads", "num_waiting", "expected"),
    [
        ([Load()], 0, 0.0),
        ([Load(running_sessions=4, max_sessions=16)], 0, 0.25),
        ([Load(running_sessions=16, max_sessions=16)], 16, 2.0),
        ([Load(queued_prompt_tokens=60, row_ms=1.0, max_sessions=16)], 0, 0.5),
        ([Load(queued_prompt_tokens=60, row_ms=1.0, num_instances=2)], 0, 0.25),
        ([Load(queued_prompt_tokens=240, row_ms=1.0), Load()], 0, 1.0),
    ],
)
def test_sessions_or_prompts_whichever_is_more(
    loads: list[Load], num_waiting: int, expected: float
) -> None:
    assert utilization(loads, num_waiting, 120.0) == pytest.approx(expected)
