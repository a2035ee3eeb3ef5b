"""Near or far, now or later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import NoReplicaError
from services.router.admission.choosing import Route, choose
from services.router.admission.policy import AdmissionPolicy, Lane
from tests.router.admission.people import REQUEST, FakeScout, Region, ticket

POLICY = AdmissionPolicy(slo_ttft_high_ms=400.0, slo_ttft_medium_ms=1000.0, slo_ttft_low_ms=5000.0)


def taken(near: Region, far: Region | None, lane: Lane = Lane.MEDIUM, waited_s: float = 0.0) -> str:
    """`region` or `region cause`, or `waits`."""
    scout = FakeScout({"us": near} if far is None else {"us": near, "eu": far})
    route = choose(ticket(lane=lane), lane, scout, POLICY, waited_s)
    if route is None:
        return "waits"
    return f"{route.sight.region} {route.spilled}".strip()


IDLE, FAR = Region(), Region(rtt_ms=90.0)


@pytest.mark.parametrize(
    ("near", "far", "lane", "waited_s", "expected"),
    [
        # At home while it can meet the objective, though another region could be sooner.
        (IDLE, FAR, Lane.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=300), FAR, Lane.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=390, prefill_ms=5), FAR, Lane.HIGH, 0.0, "us"),
        # It waits for home while the wait is within the objective.
        (Region(backlog_ms=350), FAR, Lane.MEDIUM, 0.0, "waits"),
        (Region(backlog_ms=350), FAR, Lane.LOW, 4.0, "waits"),
        # Home cannot meet it: it spills.
        (Region(backlog_ms=350), FAR, Lane.MEDIUM, 0.8, "eu full"),
        (Region(backlog_ms=350), FAR, Lane.LOW, 4.9, "eu full"),
        (Region(backlog_ms=500), FAR, Lane.HIGH, 0.0, "eu full"),
        (Region(is_full=True), FAR, Lane.LOW, 0.0, "eu full"),
        (Region(is_down=True), FAR, Lane.MEDIUM, 0.0, "eu absent"),
        (Region(prefill_ms=2000), Region(rtt_ms=90), Lane.MEDIUM, 0.0, "eu slow"),
        # It does not help: at home all the same, or in the queue.
        (Region(prefill_ms=2000), Region(rtt_ms=90, prefill_ms=2000), Lane.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=900), Region(backlog_ms=900), Lane.HIGH, 0.0, "waits"),
        (Region(is_full=True), Region(is_full=True), Lane.HIGH, 0.0, "waits"),
        (Region(is_full=True), Region(is_down=True), Lane.HIGH, 0.0, "waits"),
        # Without another region.
        (Region(backlog_ms=300), None, Lane.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=350), None, Lane.MEDIUM, 9.0, "waits"),
        (Region(prefill_ms=9000), None, Lane.HIGH, 0.0, "us"),
        (Region(is_full=True), None, Lane.HIGH, 0.0, "waits"),
        # Who had started goes wherever there is a place.
        (Region(backlog_ms=9000), Region(backlog_ms=8000), Lane.STARTED, 0.0, "eu slow"),
    ],
)
def test_every_case(
    near: Region, far: Region | None, lane: Lane, waited_s: float, expected: str
) -> None:
    assert taken(near, far, lane, waited_s) == expected


@pytest.mark.parametrize(
    ("lane", "limit_ms"), [(Lane.LOW, 200.0), (Lane.MEDIUM, 300.0), (Lane.HIGH, 400.0)]
)
def test_lower_classes_leave_room_for_higher_ones(lane: Lane, limit_ms: float) -> None:
    assert taken(Region(backlog_ms=limit_ms + 1.0), None, lane) == "us"
    assert taken(Region(backlog_ms=limit_ms + 1.1), None, lane) == "waits"


def test_a_far_replica_is_kept_busy_while_sessions_are_under_way() -> None:
    far_full = Region(rtt_ms=90.0, backlog_ms=389.0)
    assert taken(Region(is_full=True), far_full) == "eu full"
    assert taken(Region(is_full=True), replace(far_full, backlog_ms=391.0)) == "waits"


def test_the_far_regions_are_looked_at_only_when_home_cannot_meet_the_objective() -> None:
    scout = FakeScout({"us": IDLE, "eu": FAR})
    route = choose(ticket(), Lane.MEDIUM, scout, POLICY, 0.0)
    assert isinstance(route, Route) and route.home == "us"
    assert scout.looked == [("us",)]


def test_a_region_that_may_not_hold_the_prompt_gets_nothing() -> None:
    scout = FakeScout({"us": Region(is_full=True), "eu": FAR})
    request = replace(REQUEST, residency=("us",))
    assert choose(ticket(request=request), Lane.HIGH, scout, POLICY, 0.0) is None


@pytest.mark.parametrize(
    "fleet",
    [{"us": Region(is_down=True)}, {"us": Region(is_down=True), "eu": Region(is_down=True)}],
)
def test_no_replica_anywhere_is_said(fleet: dict[str, Region]) -> None:
    with pytest.raises(NoReplicaError):
        choose(ticket(), Lane.HIGH, FakeScout(fleet), POLICY, 0.0)
