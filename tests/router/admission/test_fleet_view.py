"""How far the regions are that may serve a session."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from outrider.peers.round_trip import RoundTrip
from services.router.admission.fleet_view import LiveFleetView
from services.router.placement.types import Candidate, Decision, PlacementRequest, PredictedWait

REQUEST = PlacementRequest("m", b"", 10)


@dataclass
class Row:
    """As much of a replica as the fleet view reads."""

    region: str
    rtt_ms: float
    model_name: str = "m"
    takes_sessions: bool = True
    is_returning: bool = False
    rtt: RoundTrip = field(init=False)

    def __post_init__(self) -> None:
        self.rtt = RoundTrip(self.rtt_ms)

    def may_return(self, return_s: float, now: float) -> bool:
        return self.is_returning


def fleet_view(
    *rows: Any, region: str = "us", asked: list[PlacementRequest] | None = None
) -> LiveFleetView:
    def decide(request: PlacementRequest, now: float) -> Decision:
        if asked is not None:
            asked.append(request)
        return Decision(
            Candidate("r", "eu", PredictedWait(90.0, 1.0, 2.0, 0.0, 5.0), 0), None, (), 1, 2.5
        )

    found = LiveFleetView(decide, region, return_s=2.0)
    found.refresh(rows, 0.0)
    return found


def test_home_is_the_routers_own_region_however_near_others_are() -> None:
    rows = [Row("eu", 0.2), Row("us", 3.0), Row("ca", 0.1)]
    assert fleet_view(*rows).home(REQUEST) == "us"


def test_it_stays_home_while_none_of_its_replicas_is_in_service() -> None:
    rows = [Row("eu", 90.0), Row("us", 1.0, takes_sessions=False)]
    assert fleet_view(*rows).home(REQUEST) == "us"


def test_without_replicas_of_the_model_at_home_the_nearest_region_is_home() -> None:
    rows = [Row("ap", 200.0), Row("eu", 90.0), Row("us", 1.0, model_name="x")]
    assert fleet_view(*rows).home(REQUEST) == "eu"
    assert fleet_view(*rows, Row("ca", 5.0, takes_sessions=False)).home(REQUEST) == "eu"


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


def test_a_quote_is_placements_decision_in_one_region() -> None:
    asked: list[PlacementRequest] = []
    found = fleet_view(asked=asked)
    decision = found.quote(REQUEST, "eu", 1.0)
    assert (decision.region, decision.wait.total_ms, decision.wait.rtt_ms) == ("eu", 98.0, 90.0)
    assert decision.least_backlog_ms == 2.5
    found.quote(replace(REQUEST, residency=("us",)), "", 1.0)
    assert [request.residency for request in asked] == [("eu",), ("us",)]
