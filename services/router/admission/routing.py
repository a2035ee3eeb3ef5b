"""Decides whether a session goes to a replica at once, and to which. Pure.

Placement chooses the replica, among all regions that may have the session: round trips and uncached
prompt tokens are part of its cost. Admission never removes replicas from placement's list, because
the same prefixes would then be computed in many places. It only looks at time: a session goes at
once while its first token is predicted within the objective of its class, or while some replica is
about to run out of work. Otherwise it waits in the router's queue, where higher classes can
overtake it and it can still be sent elsewhere; in a replica's queue neither is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.errors import NoReplicaError, OverloadedError, UnknownModelError
from outrider.model_identity import same_model
from services.router.admission.policy import AdmissionPolicy, QueuePriority, WakeUpPolicy
from services.router.admission.session import AdmittedSession
from services.router.fleet.replica import Replica
from services.router.placement.types import Decision
from services.router.session_request import SessionRequest


class FleetView(Protocol):
    """Placement and fleet, as admission sees them."""

    def home(self, request: SessionRequest) -> str:
        """The session's home region: the router's own, if it has replicas of the model, in service
        or not, and may hold the prompt; otherwise the nearest one that could have the session; ""
        if none could."""
        ...

    def replica_set(self, request: SessionRequest) -> Hashable:
        """Key that is equal for requests that the same replicas can serve, whatever regions their
        clients named: there are no more keys than the fleet has parts."""
        ...

    def may_return(self, request: SessionRequest) -> bool:
        """Whether a replica that could serve it takes no sessions now but may soon again: it is
        silent, in quarantine, or was lost a moment ago."""
        ...

    def wakes(self, request: SessionRequest) -> bool:
        """Whether no replica that could serve it takes sessions, and one is started for those that
        wait."""
        ...

    def quote(self, request: SessionRequest, region: str, now: float) -> Decision:
        """The best replica in a region; "": in any that the request allows. Raises what placement
        raises."""
        ...


class LiveFleetView:
    """The replica registry's regions and round trips, and placement's quotes. As FleetView."""

    def __init__(
        self,
        decide: Callable[[SessionRequest, float], Decision],
        region: str,
        return_s: float,
        wake_up: WakeUpPolicy | None = None,
    ) -> None:
        """`decide` is placement's, `region` the router's own; a replica that was lost less than
        `return_s` ago counts as one that may soon be back. Replicas of the models in `wake_up` are
        started in `region`."""
        self._decide = decide
        self._region = region
        self._return_s = return_s
        self._wake_up = wake_up or WakeUpPolicy()
        self._regions: dict[str, set[str]] = {}
        """By model, the regions with replicas of it, in service or not."""
        self._identities: dict[str, set[bytes]] = {}
        """By model, what these compute."""
        self._returning: dict[str, set[tuple[str, bytes]]] = {}
        """By model, region and model identity of replicas that take no sessions now but may
        soon."""
        self._rtt_ms: dict[str, dict[str, float]] = {}
        """By model and region, the smallest recent round trip of replicas that take sessions; a
        busy machine does not change it."""

    def refresh(self, replicas: Iterable[Replica], now: float) -> None:
        """Read the fleet again: which regions serve which model, and how far they are."""
        self._rtt_ms = {}
        self._returning = {}
        self._regions = {}
        self._identities = {}
        for replica in replicas:
            self._regions.setdefault(replica.model_name, set()).add(replica.region)
            self._identities.setdefault(replica.model_name, set()).add(replica.model_identity)
            if replica.may_return(self._return_s, now):
                found = (replica.region, replica.model_identity)
                self._returning.setdefault(replica.model_name, set()).add(found)
            if replica.takes_sessions:
                rtt_ms = self._rtt_ms.setdefault(replica.model_name, {})
                nearest = rtt_ms.get(replica.region, replica.rtt.min_ms)
                rtt_ms[replica.region] = min(nearest, replica.rtt.min_ms)

    def home(self, request: SessionRequest) -> str:
        """The router's own region where it has replicas of the model, in service or not, and may
        hold the prompt; otherwise the nearest region with one in service. Without any it is the
        router's own if a replica is started there, else ""."""
        regions = self._regions.get(request.model, ())
        if self._region in regions and request.allows_region(self._region):
            return self._region
        known = self._rtt_ms.get(request.model, {})
        allowed = [region for region in known if request.allows_region(region)]
        nowhere = self._region if self.wakes(request) else ""
        return min(allowed, key=lambda region: (known[region], region), default=nowhere)

    def replica_set(self, request: SessionRequest) -> Hashable:
        """Key made of model, vocabulary, the model's regions that are allowed, and the identity
        that has to continue the reply. Regions and identities that the fleet does not have make no
        difference."""
        regions = self._regions.get(request.model, ())
        allowed = frozenset(region for region in regions if request.allows_region(region))
        identity = request.identity
        if identity is None:
            return request.model, request.vocabulary_digest, allowed
        known = self._identities.get(request.model, ())
        if not any(same_model(identity, it) for it in known):
            identity = b""  # nobody's, as an unknown one
        begun = identity, request.allows_inexact
        return request.model, request.vocabulary_digest, allowed, begun

    def may_return(self, request: SessionRequest) -> bool:
        """Whether a replica that may serve it takes no sessions now but may soon."""
        return any(
            request.allows_region(region) and request.may_continue_at(identity)
            for region, identity in self._returning.get(request.model, ())
        )

    def wakes(self, request: SessionRequest) -> bool:
        """Whether no replica in a region that it allows takes sessions, and its model is one of
        those that are scaled to zero in this region."""
        if request.model not in self._wake_up.models or not request.allows_region(self._region):
            return False
        return not any(map(request.allows_region, self._rtt_ms.get(request.model, ())))

    def quote(self, request: SessionRequest, region: str, now: float) -> Decision:
        """The best replica in a region; "": in any that the request allows. Raises what placement
        raises."""
        narrowed = replace(request, residency=(region,)) if region else request
        return self._decide(narrowed, now)


@dataclass(frozen=True, slots=True)
class Route:
    """Placement of a session, and how it was reached."""

    decision: Decision
    home: str
    """Home region of the session (`FleetView.home`)."""
    spill_cause: str = ""
    """Why home could not have it, if it goes elsewhere: `full`, `slow` or `absent`; empty: home
    could, and the other region is only cheaper."""


def choose_route(
    session: AdmittedSession,
    backlog_priority: QueuePriority,
    fleet: FleetView,
    policy: AdmissionPolicy,
    now: float,
) -> Route | None:
    """Choose the replica that a session goes to now; None: it waits.

    `backlog_priority` decides how much backlog it accepts on a replica: its own priority, or a
    higher one for an aged class. Raises the errors of placement except OverloadedError; raises
    NoReplicaError and UnknownModelError only if no replica may return soon or is started for it.
    """
    try:
        decision = fleet.quote(session.request, "", now)
    except OverloadedError:
        return None
    except (NoReplicaError, UnknownModelError):
        # A process that gets no CPU time is silent for a while, then goes on.
        if fleet.may_return(session.request) or fleet.wakes(session.request):
            return None
        raise
    left_ms = policy.slo_ms(session.request.priority) - (now - session.arrived_at) * 1000.0
    max_backlog_ms = policy.max_backlog_ms(backlog_priority)
    if decision.wait.total_ms > left_ms and not _has_room(decision, max_backlog_ms):
        return None
    home = fleet.home(session.request) or decision.region
    if decision.region == home:
        return Route(decision, home)
    cause = _spill_cause(session.request, home, fleet, left_ms, max_backlog_ms, now)
    return Route(decision, home, cause)


def choose_background_route(
    request: SessionRequest, fleet: FleetView, policy: AdmissionPolicy, now: float
) -> Route | None:
    """The replica of a session that nobody has asked for yet; None if none is idle enough: its
    backlog is what a HIGH session may find at most. Raises NoReplicaError."""
    try:
        decision = fleet.quote(request, "", now)
    except OverloadedError:
        return None
    if not _has_room(decision, policy.max_backlog_ms(QueuePriority.HIGH)):
        return None
    return Route(decision, fleet.home(request) or decision.region)


def _has_room(decision: Decision, max_backlog_ms: float) -> bool:
    """Whether some replica's backlog is small enough for one more session. A far replica may have
    a round trip's time more: that much is done while the session is on its way."""
    return decision.least_backlog_ms <= max_backlog_ms + decision.wait.rtt_ms


def _spill_cause(
    request: SessionRequest,
    home: str,
    fleet: FleetView,
    left_ms: float,
    max_backlog_ms: float,
    now: float,
) -> str:
    """Why the home region could not have the session (Route.spill_cause)."""
    try:
        decision = fleet.quote(request, home, now)
    except NoReplicaError:
        return "absent"
    except OverloadedError:
        return "full"
    if decision.wait.total_ms <= left_ms:
        return ""
    return "slow" if _has_room(decision, max_backlog_ms) else "full"
