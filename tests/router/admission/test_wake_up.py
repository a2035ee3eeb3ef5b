"""Chats of a model that is scaled to zero wait for a replica to be started."""

from __future__ import annotations

import pytest

from outrider.errors import NoReplicaError, OutriderError, OverloadedError
from outrider.session.types import Priority
from services.router.admission.admission import Admission
from services.router.admission.policy import AdmissionPolicy, WakeUpPolicy
from services.router.admission.routing import Route
from tests.router.admission.fakes import FakeFleetView, Region, asking

LOW, MEDIUM, HIGH = Priority.LOW, Priority.MEDIUM, Priority.HIGH
MAX_WAIT_S = 300.0


def asleep() -> FakeFleetView:
    """A fleet without a replica, which is started for those that wait."""
    return FakeFleetView({"us": Region(is_down=True)}, is_scaled_to_zero=True)


def gate(max_waiting: int = 64) -> Admission:
    return Admission(
        AdmissionPolicy(max_waiting=max_waiting), wake_up=WakeUpPolicy(("m",), MAX_WAIT_S)
    )


def served(admission: Admission, fleet_view: FakeFleetView, now: float) -> list[int]:
    """Sessions that get a replica, in order."""
    found = []
    for turn in admission.dequeue(fleet_view, now):
        assert isinstance(turn.outcome, Route)
        found.append(turn.session_id)
    return found


def refused(admission: Admission, now: float) -> dict[int, OutriderError]:
    """Sessions that have waited too long."""
    admission.expire(now)
    return dict(admission.take_refused())


def test_they_wait_longer_than_their_class_would_and_are_served_when_a_replica_is_there() -> None:
    admission, fleet_view = gate(), asleep()
    for session, priority in ((1, LOW), (2, MEDIUM), (3, HIGH)):
        assert admission.open(*asking(session, priority), fleet_view, 0.0) is None
        assert admission.is_waking(session)
    assert refused(admission, MAX_WAIT_S - 0.1) == {}
    assert served(admission, fleet_view, MAX_WAIT_S - 0.1) == []
    assert served(admission, FakeFleetView(), MAX_WAIT_S - 0.1) == [3, 2, 1]


def test_none_waits_where_no_replica_is_started() -> None:
    admission = gate()
    with pytest.raises(NoReplicaError):
        admission.open(*asking(1), FakeFleetView({"us": Region(is_down=True)}), 0.0)
    assert len(admission) == 0


def test_the_wait_ends_and_says_why() -> None:
    admission = gate()
    admission.open(*asking(1), asleep(), 0.0)
    found = refused(admission, MAX_WAIT_S)
    assert isinstance(found[1], OverloadedError)
    assert found[1].metadata == {"cause": "wake_up"}
    assert "no replica was started" in found[1].message
    assert admission.stats.take().refused == {("MEDIUM", "wake_up", "m"): 1}


def test_a_client_that_waits_less_long_is_refused_at_its_own_deadline() -> None:
    admission = gate()
    admission.open(*asking(1, deadline_at=7.0), asleep(), 0.0)
    assert refused(admission, 6.9) == {}
    assert list(refused(admission, 7.0)) == [1]


def test_the_queue_is_bounded_and_who_has_most_there_makes_room_for_others() -> None:
    admission, fleet_view = gate(max_waiting=8), asleep()
    for session in range(100):
        try:
            admission.open(*asking(session, HIGH, "many"), fleet_view, 0.0)
        except OverloadedError as error:
            assert error.metadata["cause"] == "queue"
    bound = len(admission)
    assert bound <= 8
    assert admission.open(*asking(100, HIGH, "one"), fleet_view, 1.0) is None
    victim, why = admission.take_refused()[0]
    assert why.metadata == {"cause": "shed"}
    admission.close(victim, 0, 1.0)
    assert len(admission) == bound
    assert 100 in served(admission, FakeFleetView(), 60.0)[:2], "tenants take turns"


def test_the_time_of_a_start_is_not_taken_for_the_pace_of_replicas() -> None:
    """Otherwise those that come just after it would be refused for a wait of minutes."""
    admission, fleet_view = gate(), asleep()
    for session in range(8):
        admission.open(*asking(session), fleet_view, 0.0)
    now = 120.0
    for turn in admission.dequeue(FakeFleetView(), now):
        assert isinstance(turn.outcome, Route)
        now += 0.1
    full = FakeFleetView({"us": Region(is_full=True)})
    for session in range(8, 16):
        assert admission.open(*asking(session), full, now) is None
