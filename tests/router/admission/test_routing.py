"""Near or far, now or later; and how far the regions are that may serve a session."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NoReplicaError
from outrider.peers.round_trip import RoundTrip
from outrider.session.types import Priority
from services.router.admission.policy import AdmissionPolicy, QueuePriority, WakeUpPolicy
from services.router.admission.routing import LiveFleetView, Route, choose_route
from services.router.placement.types import Candidate, Decision, PredictedWait
from services.router.session_request import SessionRequest
from tests.router.admission.fakes import REQUEST, FakeFleetView, Region, admitted

POLICY = AdmissionPolicy(slo_ttft_high_ms=400.0, slo_ttft_medium_ms=1000.0, slo_ttft_low_ms=5000.0)


def taken(
    near: Region,
    far: Region | None,
    priority: QueuePriority = QueuePriority.MEDIUM,
    waited_s: float = 0.0,
) -> str:
    """`region` or `region cause`, or `waits`."""
    fleet_view = FakeFleetView({"us": near} if far is None else {"us": near, "eu": far})
    route = choose_route(admitted(priority=priority), priority, fleet_view, POLICY, waited_s)
    if route is None:
        return "waits"
    return f"{route.decision.region} {route.spill_cause}".strip()


IDLE, FAR = Region(), Region(rtt_ms=90.0)


@pytest.mark.parametrize(
    ("near", "far", "priority", "waited_s", "expected"),
    [
        # It goes at once, where it is cheapest, while it meets the objective.
        (IDLE, FAR, QueuePriority.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=60), FAR, QueuePriority.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=370), None, QueuePriority.HIGH, 0.0, "us"),
        (Region(backlog_ms=970), None, QueuePriority.MEDIUM, 0.0, "us"),
        (Region(backlog_ms=4970), None, QueuePriority.LOW, 0.0, "us"),
        # Home would have done, but it is cheaper elsewhere: it does not count as spilled.
        (Region(backlog_ms=300), FAR, QueuePriority.MEDIUM, 0.0, "eu"),
        # Home would not have done.
        (Region(backlog_ms=500), FAR, QueuePriority.HIGH, 0.0, "eu full"),
        (Region(backlog_ms=300), FAR, QueuePriority.MEDIUM, 0.8, "eu slow"),
        (Region(is_full=True), FAR, QueuePriority.LOW, 0.0, "eu full"),
        (Region(is_down=True), FAR, QueuePriority.MEDIUM, 0.0, "eu absent"),
        (Region(prefill_ms=2000), FAR, QueuePriority.MEDIUM, 0.0, "eu slow"),
        # It will be late, and goes all the same while a replica runs out of work.
        (Region(prefill_ms=9000), None, QueuePriority.HIGH, 0.0, "us"),
        (Region(backlog_ms=500), None, QueuePriority.MEDIUM, 15.0, "us"),
        (
            Region(prefill_ms=2000),
            Region(rtt_ms=90, prefill_ms=2000),
            QueuePriority.MEDIUM,
            0.0,
            "us",
        ),
        # Or waits.
        (Region(backlog_ms=502), None, QueuePriority.MEDIUM, 15.0, "waits"),
        (Region(backlog_ms=1002), None, QueuePriority.MEDIUM, 0.0, "waits"),
        (Region(backlog_ms=5002), None, QueuePriority.LOW, 0.0, "waits"),
        (Region(backlog_ms=900), Region(backlog_ms=900), QueuePriority.HIGH, 0.0, "waits"),
        (Region(is_full=True), Region(is_full=True), QueuePriority.HIGH, 0.0, "waits"),
        (Region(is_full=True), Region(is_down=True), QueuePriority.HIGH, 0.0, "waits"),
        (Region(is_full=True), None, QueuePriority.HIGH, 0.0, "waits"),
        # Who had started goes wherever there is a place.
        (Region(backlog_ms=9000), Region(backlog_ms=8000), QueuePriority.RESUMED, 0.0, "eu slow"),
    ],
)
def test_every_case(
    near: Region, far: Region | None, priority: QueuePriority, waited_s: float, expected: str
) -> None:
    assert taken(near, far, priority, waited_s) == expected


@pytest.mark.parametrize("priority", [QueuePriority.LOW, QueuePriority.MEDIUM, QueuePriority.HIGH])
def test_what_may_be_back_is_waited_for(priority: QueuePriority) -> None:
    silent, down = Region(is_silent=True), Region(is_down=True)
    assert taken(silent, None, priority) == taken(silent, down, priority) == "waits"
    assert taken(silent, FAR, priority) == "eu absent"
    fleet_view = FakeFleetView({"us": Region(is_down=True), "eu": silent})
    request = replace(REQUEST, residency=("us",))
    with pytest.raises(NoReplicaError):
        choose_route(admitted(request=request), priority, fleet_view, POLICY, 0.0)


@pytest.mark.parametrize("priority", [QueuePriority.LOW, QueuePriority.MEDIUM, QueuePriority.HIGH])
def test_what_makes_way_for_a_class_does_not_hold_it_up(priority: QueuePriority) -> None:
    behind = Region(backlogs_ms=tuple(9e9 if line < priority else 0.0 for line in (1, 2, 3)))
    request = replace(REQUEST, priority=Priority(priority))
    fleet_view = FakeFleetView({"us": behind})
    assert (
        choose_route(
            admitted(priority=priority, request=request), priority, fleet_view, POLICY, 0.0
        )
        is not None
    )


def test_a_far_replica_is_kept_busy_while_sessions_are_under_way() -> None:
    far = Region(rtt_ms=90.0, backlog_ms=589.0, prefill_ms=900)
    assert taken(Region(is_full=True), far) == "eu full"
    assert taken(Region(is_full=True), replace(far, backlog_ms=591.0)) == "waits"


def test_one_replica_that_runs_out_of_work_opens_the_gate_to_the_cheapest_one() -> None:
    """No replica is kept idle for the sake of the line, and none computes what another has."""
    warm, cold = Region(backlog_ms=1500, prefill_ms=10), Region(backlog_ms=450, prefill_ms=1400)
    assert taken(warm, None) == "waits"
    assert taken(warm, cold) == "us"


@given(
    st.lists(st.floats(0.0, 6000.0), min_size=1, max_size=4),
    st.sampled_from([QueuePriority.LOW, QueuePriority.MEDIUM, QueuePriority.HIGH]),
    st.floats(0.0, 6.0),
)
def test_nobody_waits_who_could_be_in_time_or_keep_a_replica_busy(
    backlogs_ms: list[float], priority: QueuePriority, waited_s: float
) -> None:
    fleet = {str(number): Region(backlog_ms=ms) for number, ms in enumerate(backlogs_ms)}
    fleet_view = FakeFleetView(fleet)
    route = choose_route(admitted(priority=priority), priority, fleet_view, POLICY, waited_s)
    decision = fleet_view.quote(REQUEST, "", 0.0)
    left_ms = POLICY.slo_ms(Priority(priority)) - waited_s * 1000.0
    is_in_time = decision.wait.total_ms <= left_ms
    has_room = min(backlogs_ms) <= 0.5 * POLICY.slo_ms(Priority(priority)) + decision.wait.rtt_ms
    assert (route is not None) == (is_in_time or has_room)


def test_home_is_looked_at_apart_only_when_another_region_is_cheaper() -> None:
    fleet_view = FakeFleetView({"us": IDLE, "eu": FAR})
    route = choose_route(admitted(), QueuePriority.MEDIUM, fleet_view, POLICY, 0.0)
    assert isinstance(route, Route) and route.home == "us"
    assert fleet_view.quoted == [""]


def test_a_region_that_may_not_hold_the_prompt_gets_nothing() -> None:
    fleet_view = FakeFleetView({"us": Region(is_full=True), "eu": FAR})
    request = replace(REQUEST, residency=("us",))
    assert (
        choose_route(admitted(request=request), QueuePriority.HIGH, fleet_view, POLICY, 0.0) is None
    )


@dataclass
class Row:
    """As much of a replica as the fleet view reads."""

    region: str
    rtt_ms: float
    model_name: str = "m"
    takes_sessions: bool = True
    is_returning: bool = False
    model_identity: bytes = b"\x0a" * 32
    rtt: RoundTrip = field(init=False)

    def __post_init__(self) -> None:
        self.rtt = RoundTrip(self.rtt_ms)

    def may_return(self, return_s: float, now: float) -> bool:
        return self.is_returning


def fleet_view(
    *rows: Any,
    region: str = "us",
    asked: list[SessionRequest] | None = None,
    wake_up: WakeUpPolicy | None = None,
) -> LiveFleetView:
    def decide(request: SessionRequest, now: float) -> Decision:
        if asked is not None:
            asked.append(request)
        return Decision(
            Candidate("r", "eu", PredictedWait(90.0, 1.0, 0.0, 2.0, 0.0, 5.0), 0), None, (), 1, 2.5
        )

    found = LiveFleetView(decide, region, 2.0, wake_up)
    found.refresh(rows, 0.0)
    return found


@pytest.mark.parametrize(
    ("rows", "home"),
    [
        # The router's own region, however near others are, and whoever is in service there.
        ([Row("eu", 0.2), Row("us", 3.0), Row("ca", 0.1)], "us"),
        ([Row("eu", 90.0), Row("us", 1.0, takes_sessions=False)], "us"),
        # Without replicas of the model there, the nearest region that takes sessions.
        ([Row("ap", 200.0), Row("eu", 90.0), Row("us", 1.0, model_name="x")], "eu"),
        ([Row("ap", 200.0), Row("eu", 90.0), Row("ca", 5.0, takes_sessions=False)], "eu"),
    ],
)
def test_home(rows: list[Row], home: str) -> None:
    assert fleet_view(*rows).home(REQUEST) == home


def test_residency_and_model_bound_what_is_home() -> None:
    rows = [Row("us", 1.0), Row("eu", 90.0), Row("ap", 200.0), Row("sa", 1.0, model_name="x")]
    request = replace(REQUEST, residency=("ap", "eu", "sa"))
    assert fleet_view(*rows).home(request) == "eu"
    assert fleet_view(*rows).home(replace(REQUEST, model="y")) == ""


def test_replicas_that_are_silent_may_be_back_where_the_session_may_go() -> None:
    found = fleet_view(Row("eu", 90.0, takes_sessions=False, is_returning=True))
    assert found.home(REQUEST) == ""
    assert found.may_return(REQUEST)
    assert found.may_return(replace(REQUEST, residency=("eu",)))
    assert not found.may_return(replace(REQUEST, residency=("us",)))
    assert not found.may_return(replace(REQUEST, model="y"))


def test_a_replica_is_started_in_the_routers_region_if_none_can_have_the_session() -> None:
    asleep = WakeUpPolicy(("m",))
    nowhere = fleet_view(wake_up=asleep)
    assert nowhere.wakes(REQUEST) and nowhere.home(REQUEST) == "us"
    assert nowhere.wakes(replace(REQUEST, residency=("us", "eu")))
    elsewhere = replace(REQUEST, residency=("eu",))
    assert not nowhere.wakes(elsewhere) and nowhere.home(elsewhere) == ""
    assert not nowhere.wakes(replace(REQUEST, model="y"))
    assert not fleet_view().wakes(REQUEST), "no model is scaled to zero unless settings say so"
    assert fleet_view(Row("us", 1.0, takes_sessions=False), wake_up=asleep).wakes(REQUEST)
    far = fleet_view(Row("eu", 90.0), wake_up=asleep)
    assert not far.wakes(REQUEST) and far.home(REQUEST) == "eu"
    assert far.wakes(replace(REQUEST, residency=("us",)))


def test_a_reply_waits_only_for_a_silent_replica_that_may_go_on_with_it() -> None:
    silent = Row("eu", 90.0, takes_sessions=False, is_returning=True)
    found = fleet_view(silent)
    assert found.may_return(replace(REQUEST, identity=silent.model_identity))
    for other in (b"\x0b" * 32, b""):
        assert not found.may_return(replace(REQUEST, identity=other))
        assert found.may_return(replace(REQUEST, identity=other, allows_inexact=True))


def test_what_names_no_part_of_the_fleet_makes_no_queue_of_its_own() -> None:
    found = fleet_view(Row("us", 1.0), Row("eu", 90.0), Row("ap", 1.0, model_name="x"))

    def residing(*names: str) -> Hashable:
        return found.replica_set(replace(REQUEST, residency=names))

    assert residing("us", "eu") == residing("eu", "ap", "us", "us", "nowhere")
    assert residing("us") == residing("us", "ap") == residing("us", "elsewhere")
    assert residing("nowhere") == residing("elsewhere")
    assert len({residing(), residing("us"), residing("eu"), residing("nowhere")}) == 4
    assert residing() == residing("us", "eu"), "wherever there is one"


def test_replies_wait_by_what_may_go_on_with_them() -> None:
    ours = Row("us", 1.0).model_identity
    found = fleet_view(Row("us", 1.0), Row("us", 1.0, model_identity=b"\x0b" * 32))

    def begun(identity: bytes | None, *, allows_inexact: bool = False) -> Hashable:
        request = replace(REQUEST, identity=identity, allows_inexact=allows_inexact)
        return found.replica_set(request)

    assert begun(b"made up", allows_inexact=True) == begun(b"as well", allows_inexact=True)
    sets = [begun(None), begun(ours), begun(ours, allows_inexact=True), begun(b"\x0b" * 32)]
    assert len(set(sets)) == 4


def test_a_quote_is_placements_decision_in_one_region() -> None:
    asked: list[SessionRequest] = []
    found = fleet_view(asked=asked)
    decision = found.quote(REQUEST, "eu", 1.0)
    assert (decision.region, decision.wait.total_ms, decision.wait.rtt_ms) == ("eu", 98.0, 90.0)
    assert decision.least_backlog_ms == 2.5
    found.quote(replace(REQUEST, residency=("us",)), "", 1.0)
    assert [request.residency for request in asked] == [("eu",), ("us",)]
