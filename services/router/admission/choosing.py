"""Near or far, now or later: where a session goes that is let in. Pure.

In this order: the nearest region, at once or after a wait, while it can meet the objective of the
class; another region that can take the session sooner (it spills over); the nearest one all the
same if it has room; the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.errors import NoReplicaError, OverloadedError
from services.router.admission.policy import AdmissionPolicy, Lane
from services.router.admission.ticket import Ticket
from services.router.placement.request import Decision, Request


@dataclass(frozen=True, slots=True)
class Regions:
    """Where a session may go."""

    near: tuple[str, ...]
    """The nearest regions with a replica that may serve it; empty if there is none anywhere."""
    far: tuple[str, ...] = ()
    """The others."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What placement would do."""

    region: str
    ttft_ms: float
    """Predicted for a session that went there now."""
    backlog_ms: float
    """The part of it that passes while the session waits: others' prompts and replies."""
    rtt_ms: float
    decision: Decision

    def has_room(self, lane: Lane, policy: AdmissionPolicy) -> bool:
        """Whether a session of this line may be added to what is there. What is done while the
        session is under way keeps the replica busy, so a far one may have that much more."""
        return self.backlog_ms <= policy.backlog_ms(lane) + self.rtt_ms


class Scout(Protocol):
    """Placement and fleet, as admission sees them."""

    def regions(self, request: Request) -> Regions:
        """Where it may go."""
        ...

    def look(self, request: Request, regions: tuple[str, ...], now: float) -> Sight:
        """The best replica in these regions; none named: in any that the request allows. Raises
        what placement raises."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """Where a session goes now."""

    sight: Sight
    home: str
    """The region it would have gone to."""
    spilled: str = ""
    """Why it went to another: `full`, `slow` or `absent`; "" if it did not."""


def choose(
    ticket: Ticket, room: Lane, scout: Scout, policy: AdmissionPolicy, now: float
) -> Route | None:
    """Where a session goes now, or None: it has to wait, or had better.

    `room` is the line whose room it may use. Raises what placement raises, but for OverloadedError.
    """
    regions = scout.regions(ticket.request)
    home = next(iter(regions.near), "")
    near, why = _look(scout, ticket.request, regions.near if regions.far else (), now)
    if not regions.far:
        if isinstance(why, NoReplicaError):
            raise why
        return Route(near, home) if near and near.has_room(room, policy) else None
    left_ms = policy.slo_ms(ticket.priority) - (now - ticket.arrived_at) * 1000.0
    is_open = near is not None and near.has_room(room, policy)
    if near and near.ttft_ms <= left_ms:
        return Route(near, home) if is_open else None
    far, _ = _look(scout, ticket.request, regions.far, now)
    if far and far.has_room(room, policy) and (not near or far.ttft_ms < near.ttft_ms):
        return Route(far, home, _cause(near, is_open, why))
    if not near and not far and isinstance(why, NoReplicaError):
        scout.look(ticket.request, (), now)  # which says how all of them stand
    return Route(near, home) if near and is_open else None


def _look(
    scout: Scout, request: Request, regions: tuple[str, ...], now: float
) -> tuple[Sight | None, OverloadedError | NoReplicaError | None]:
    """The best replica there, or why there is none."""
    try:
        return scout.look(request, regions, now), None
    except (OverloadedError, NoReplicaError) as error:
        return None, error


def _cause(near: Sight | None, is_open: bool, why: Exception | None) -> str:
    if near is not None:
        return "slow" if is_open else "full"
    return "full" if isinstance(why, OverloadedError) else "absent"
