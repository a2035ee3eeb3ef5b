"""Sessions and fleets for tests of admission."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outrider.errors import NoReplicaError, OverloadedError
from outrider.session_types import Priority
from services.router.admission.choosing import Sight
from services.router.admission.policy import Lane
from services.router.admission.ticket import Arrival, Ticket
from services.router.placement.request import Candidate, Decision, Request, Wait

REQUEST = Request("m", b"", 10)


def ticket(
    session: int = 1,
    tenant: str = "",
    lane: Lane = Lane.MEDIUM,
    *,
    cost: int = 100,
    weight: float = 1.0,
    at: float = 0.0,
    until: float = 1e6,
    request: Request = REQUEST,
) -> Ticket:
    """A session that was let in."""
    return Ticket(
        session=session,
        request=request,
        tenant=tenant,
        share=tenant,
        address=b"",
        priority=Priority(min(lane, Priority.HIGH)),
        lane=lane,
        cost_tokens=cost,
        weight=weight,
        reservation=0,
        arrived_at=at,
        deadline_at=None,
        expires_at=until,
    )


def arrival(
    session: int,
    priority: Priority | None = None,
    tenant: str = "",
    *,
    model: str = "m",
    max_tokens: int = 90,
    deadline_at: float | None = None,
    has_started: bool = False,
) -> Arrival:
    """A session that asks to be let in."""
    return Arrival(
        session=session,
        request=replace(REQUEST, model=model, priority=priority or Priority.MEDIUM),
        max_tokens=max_tokens,
        tenant=tenant,
        priority=priority,
        deadline_at=deadline_at,
        has_started=has_started,
    )


@dataclass
class Region:
    """A region's only replica, as placement would see it."""

    backlog_ms: float = 0.0
    backlogs_ms: tuple[float, ...] = ()
    """The same for LOW, MEDIUM and HIGH sessions, where it is not the same."""
    rtt_ms: float = 1.0
    prefill_ms: float = 20.0
    is_full: bool = False
    is_down: bool = False
    is_silent: bool = False
    """Its replica is there and takes no sessions just now."""


@dataclass
class FakeScout:
    """Placement over regions that a test describes, the first one at home."""

    fleet: dict[str, Region] = field(default_factory=lambda: {"us": Region()})
    looked: list[str] = field(default_factory=list)

    def home(self, request: Request) -> str:
        return next(iter(self._allowed(request)), "")

    def may_return(self, request: Request) -> bool:
        return any(self.fleet[name].is_silent for name in self._allowed(request))

    def look(self, request: Request, region: str, now: float) -> Sight:
        self.looked.append(region)
        names = (region,) if region else self._allowed(request)
        found = {name: self.fleet[name] for name in names}
        up = {
            name: region
            for name, region in found.items()
            if not (region.is_down or region.is_silent)
        }
        if not up:
            raise NoReplicaError("none")
        free = {name: region for name, region in up.items() if not region.is_full}
        if not free:
            raise OverloadedError("full")
        sights = [_sight(*entry, request.priority) for entry in free.items()]
        best = min(sights, key=lambda sight: sight.ttft_ms)
        return replace(best, least_backlog_ms=min(one.least_backlog_ms for one in sights))

    def _allowed(self, request: Request) -> tuple[str, ...]:
        return tuple(n for n in self.fleet if not request.residency or n in request.residency)


def _sight(name: str, region: Region, priority: int) -> Sight:
    backlog_ms = region.backlogs_ms[priority - 1] if region.backlogs_ms else region.backlog_ms
    wait = Wait(
        rtt_ms=region.rtt_ms,
        place_ms=0.0,
        queue_ms=backlog_ms,
        transfer_ms=0.0,
        prefill_ms=region.prefill_ms,
    )
    decision = Decision(Candidate(f"{name}-0", name, wait, 0), None, (), 1)
    return Sight(name, wait.total_ms, backlog_ms, region.rtt_ms, decision)
