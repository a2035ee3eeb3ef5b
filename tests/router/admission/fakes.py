"""Sessions and fleets for tests of admission."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import NoReplicaError, OverloadedError
from outrider.fair_work.turns import Requester
from outrider.session.types import Priority
from services.router.admission.policy import QueuePriority
from services.router.admission.session import AdmittedSession
from services.router.placement.types import Candidate, Decision, PredictedWait
from services.router.session_request import SessionRequest

REQUEST = SessionRequest("m", b"", 10)


def admitted(
    session: int = 1,
    tenant: str = "",
    priority: QueuePriority = QueuePriority.MEDIUM,
    *,
    cost: int = 100,
    weight: float = 1.0,
    at: float = 0.0,
    until: float = 1e6,
    request: SessionRequest = REQUEST,
) -> AdmittedSession:
    """A session that was let in."""
    return AdmittedSession(
        session_id=session,
        request=replace(
            request, tenant=tenant, flow=tenant, priority=Priority(min(priority, Priority.HIGH))
        ),
        queue_priority=priority,
        reserved_tokens=cost,
        weight=weight,
        reservation_id=0,
        arrived_at=at,
        expires_at=until,
        replica_set=(request.model, request.residency),
    )


def asking(
    session: int,
    priority: Priority = Priority.MEDIUM,
    tenant: str = "",
    *,
    max_tokens: int = 90,
    address_hash: bytes = b"",
    is_resumed: bool = False,
    **fields: Any,
) -> tuple[int, SessionRequest]:
    """A session that asks to be let in: its id, and what it asks for."""
    return session, replace(
        REQUEST,
        priority=priority,
        tenant=tenant,
        max_tokens=max_tokens,
        address_hash=address_hash,
        flow=Requester.of(tenant, address_hash, b"").origin,
        **({"num_committed": 1} if is_resumed else {}) | fields,
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
class FakeFleetView:
    """Placement over regions that a test describes, the first one at home."""

    fleet: dict[str, Region] = field(default_factory=lambda: {"us": Region()})
    quoted: list[str] = field(default_factory=list)
    is_scaled_to_zero: bool = False
    """Whether a replica is started for sessions while none takes any."""

    def home(self, request: SessionRequest) -> str:
        return next(iter(self._allowed(request)), "")

    def replica_set(self, request: SessionRequest) -> Hashable:
        return request.model, self._allowed(request)

    def may_return(self, request: SessionRequest) -> bool:
        return any(self.fleet[name].is_silent for name in self._allowed(request))

    def wakes(self, request: SessionRequest) -> bool:
        found = (self.fleet[name] for name in self._allowed(request))
        return self.is_scaled_to_zero and all(it.is_down or it.is_silent for it in found)

    def quote(self, request: SessionRequest, region: str, now: float) -> Decision:
        self.quoted.append(region)
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
        decisions = [_decision(*entry, request.priority) for entry in free.items()]
        best = min(decisions, key=lambda decision: decision.wait.total_ms)
        return best._replace(least_backlog_ms=min(one.least_backlog_ms for one in decisions))

    def _allowed(self, request: SessionRequest) -> tuple[str, ...]:
        return tuple(n for n in self.fleet if not request.residency or n in request.residency)


def _decision(name: str, region: Region, priority: int) -> Decision:
    backlog_ms = region.backlogs_ms[priority - 1] if region.backlogs_ms else region.backlog_ms
    wait = PredictedWait(
        rtt_ms=region.rtt_ms,
        slot_ms=0.0,
        memory_ms=0.0,
        queue_ms=backlog_ms,
        transfer_ms=0.0,
        prefill_ms=region.prefill_ms,
    )
    return Decision(Candidate(f"{name}-0", name, wait, 0), None, (), 1, backlog_ms)
