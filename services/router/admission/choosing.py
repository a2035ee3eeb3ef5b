"""Now or later, here or far: whether a session that is let in goes to a replica at once. Pure.

Where it goes is placement's choice, among all regions that may have it: the round trip and the work
that a prompt makes where it is not cached are in its cost, and a gate that took replicas off the
list would have prefixes computed in many places. The gate looks at time alone. A session goes at
once while its first token is predicted within the objective of its class; or while some replica is
about to run out of work, since nothing is gained by keeping that idle. Otherwise it waits: on a
replica it could not be overtaken, nor sent anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.errors import NoReplicaError, OverloadedError
from services.router.admission.policy import AdmissionPolicy, Lane
from services.router.admission.ticket import Ticket
from services.router.placement.request import Decision, Request


@dataclass(frozen=True, slots=True)
class Sight:
    """What placement would do."""

    region: str
    ttft_ms: float
    """Predicted for a session that went there now."""
    least_backlog_ms: float
    """The least time that passes on any replica in sight before what is there already is done."""
    rtt_ms: float
    decision: Decision

    def has_room(self, limit_ms: float) -> bool:
        """Whether a session may be added to what is there. What is done while the session is under
        way keeps the replica busy, so a far one may have that much more."""
        return self.least_backlog_ms <= limit_ms + self.rtt_ms


class FleetView(Protocol):
    """Placement and fleet, as admission sees them."""

    def home(self, request: Request) -> str:
        """Where it belongs: the router's own region where that has replicas of its model, in
        service or not, and may hold the prompt; otherwise the nearest region that could have it, ""
        if none could."""
        ...

    def may_return(self, request: Request) -> bool:
        """Whether a replica that may serve it takes no sessions just now, but soon may again: it is
        silent, on trial, or was lost a moment ago."""
        ...

    def quote(self, request: Request, region: str, now: float) -> Sight:
        """The best replica in a region; "": in any that the request allows. Raises what placement
        raises."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """Where a session goes now."""

    sight: Sight
    home: str
    """Where it belongs (`FleetView.home`), however near other regions are."""
    spilled: str = ""
    """Why it went to another, where home would not have done: `full`, `slow` or `absent`."""


def choose(
    ticket: Ticket, room: Lane, fleet_view: FleetView, policy: AdmissionPolicy, now: float
) -> Route | None:
    """Where a session goes now, or None: it has to wait, or had better.

    `room` is the line whose room it may use. Raises what placement raises, but for OverloadedError,
    and NoReplicaError only where none is about to be back.
    """
    try:
        sight = fleet_view.quote(ticket.request, "", now)
    except OverloadedError:
        return None
    except NoReplicaError:
        if fleet_view.may_return(ticket.request):
            return None  # a process that starves is silent for a while, and then goes on
        raise
    left_ms = policy.slo_ms(ticket.priority) - (now - ticket.arrived_at) * 1000.0
    limit_ms = policy.backlog_ms(room)
    if sight.ttft_ms > left_ms and not sight.has_room(limit_ms):
        return None
    home = fleet_view.home(ticket.request) or sight.region
    if sight.region == home:
        return Route(sight, home)
    return Route(sight, home, _cause(ticket.request, home, fleet_view, (left_ms, limit_ms), now))


def _cause(
    request: Request,
    home: str,
    fleet_view: FleetView,
    limits_ms: tuple[float, float],
    now: float,
) -> str:
    """What was wrong at home; "" if nothing was: it is only cheaper elsewhere."""
    left_ms, limit_ms = limits_ms
    try:
        sight = fleet_view.quote(request, home, now)
    except NoReplicaError:
        return "absent"
    except OverloadedError:
        return "full"
    if sight.ttft_ms <= left_ms:
        return ""
    return "slow" if sight.has_room(limit_ms) else "full"
