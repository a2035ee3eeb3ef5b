"""The latest decisions are kept, the others are not."""

from __future__ import annotations

from services.router.placement.history import PlacementHistory, PlacementRecord
from tests.router.placement.fleet import Town, replica


def placed(request_id: str, at: float) -> PlacementRecord:
    return PlacementRecord(request_id, "m", 10, Town(replica("a")).decide(), at, 0.1)


def test_the_newest_come_first_and_the_oldest_go() -> None:
    history = PlacementHistory(3)
    for at, request_id in enumerate("abac"):
        history.add(placed(request_id, float(at)))
    assert [one.at for one in history.find("", 10)] == [3.0, 2.0, 1.0]
    assert [one.at for one in history.find("", 2)] == [3.0, 2.0]
    assert [one.at for one in history.find("a", 10)] == [2.0]
    assert history.find("x", 10) == []
