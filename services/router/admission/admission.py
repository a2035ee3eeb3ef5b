"""Admission control: which sessions get a replica at once, wait in the queue, or are refused. Pure.

Under load the router gives up, in this order: waiting in the nearest region within the objective of
the class; another region; waiting for any region; LOW sessions that wait; new sessions, which are
refused with the time at which the queue will have room. A session that has a replica keeps it.
Before all of this the replicas themselves give up drafts and large prefill chunks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from outrider.cost import Cost
from outrider.errors import DeadlineError, OutriderError, OverloadedError
from outrider.session.types import Priority
from services.router.admission.address_limit import AddressLimit
from services.router.admission.policy import (
    AdmissionPolicy,
    LengthPolicy,
    QueuePriority,
    WakeUpPolicy,
)
from services.router.admission.pricing import ChatCharges, PriceTable
from services.router.admission.queue import AdmissionQueue, Head, QueueRate
from services.router.admission.routing import (
    FleetView,
    Route,
    choose_background_route,
    choose_route,
)
from services.router.admission.session import AdmittedSession
from services.router.admission.tenants import TenantPolicy, Tenants, delay_ms
from services.router.session_request import SessionRequest

_BACKGROUND_RETRY_MS: Final = 1000
MAX_WAITS: Final = 4096
"""Waits kept between two calls of AdmissionStats.take, the latest ones."""


def _waits() -> deque[tuple[Priority, str, float]]:
    return deque(maxlen=MAX_WAITS)


@dataclass(slots=True)
class AdmissionStats:
    """Counts since the last `take`, for metrics."""

    refused: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Refused sessions by class, cause and model. Without a model if the cause is a tenant's limit,
    which is checked before the model's name."""
    spilled: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By home region, region taken and cause."""
    waits_ms: deque[tuple[Priority, str, float]] = field(default_factory=_waits)
    """Class, model and time in the queue of every session that got a replica, 0 without a wait."""
    sessions: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By tenant's label and outcome: `admitted` or `refused`."""
    tokens: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Tokens used, by tenant's label."""
    costs_nanos: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Billionths of the currency charged for them, by tenant's label and model."""

    def take(self) -> AdmissionStats:
        """The counts so far, which start again at zero."""
        taken = replace(self)
        self.refused = Counter()
        self.spilled = Counter()
        self.waits_ms = _waits()
        self.sessions = Counter()
        self.tokens = Counter()
        self.costs_nanos = Counter()
        return taken


@dataclass(frozen=True, slots=True)
class Dequeued:
    """A session that left the queue."""

    session_id: int
    outcome: Route | OutriderError
    """Route of the session, or the error with which it is refused."""


class Admission:
    """Every session of the router from `open` to `close`. Methods take `now` in seconds."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        tenants: Iterable[TenantPolicy] = (),
        lengths: LengthPolicy | None = None,
        prices: PriceTable | None = None,
        wake_up: WakeUpPolicy | None = None,
    ) -> None:
        self.policy = policy
        self.tenants = Tenants(tenants)
        self._lengths = lengths or LengthPolicy()
        self._wake_up = wake_up or WakeUpPolicy()
        self._prices = prices or PriceTable()
        self._charges = ChatCharges()
        self._address_limit = AddressLimit(policy.max_above_low_per_address)
        self.stats = AdmissionStats()
        self._queue = AdmissionQueue(policy.max_waiting, policy.ageing_s)
        self._sessions: dict[int, AdmittedSession] = {}
        self._rates: dict[str, QueueRate] = {}
        """By model; sessions wait only for models that replicas have or are started for."""
        self._refused: list[tuple[int, OutriderError]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def num_waiting(self) -> dict[tuple[str, Priority], int]:
        """Sessions in the queue by model and class; resumed ones count as HIGH."""
        found = {}
        for model, counts in self._queue.num_waiting().items():
            for priority in Priority:
                found[model, priority] = counts[QueuePriority(priority)]
            found[model, Priority.HIGH] += counts[QueuePriority.RESUMED]
        return found

    def num_waiting_by_model(self) -> dict[str, int]:
        """Sessions in the queue by model; models without any are left out."""
        return {model: sum(it.values()) for model, it in self._queue.num_waiting().items()}

    def grant(self, request: SessionRequest, now: float) -> Priority:
        """The class that a session gets: the one it asks for, as far as its tenant, the length of
        its prompt and, for a client without a key, the limit of its address allow."""
        return min(
            self.tenants.grant(request.tenant, request.priority),
            self._lengths.highest(request.prompt_tokens),
            self._address_limit.highest(request.flow, request.address_hash, now),
        )

    def open(
        self, session_id: int, asked: SessionRequest, fleet: FleetView, now: float
    ) -> Route | None:
        """Let a session in, with the class of `grant`: where it goes now; None if it waits for
        `dequeue`. Its id is unique among the router's live sessions.

        Raises OverloadedError with `cause` in its metadata (tenant_sessions, tenant_tokens, queue,
        slo), InvalidRequestError, and what placement raises; then the session does not count as
        open.
        """
        request = replace(asked, priority=self.grant(asked, now))
        try:
            session = self._reserve(session_id, request, fleet, now)
            try:
                route = self._route_at_once(session, fleet, now)
                if route is None:
                    self._enqueue(session, now)
            except OutriderError:
                self.close(session.session_id, 0, now)
                raise
        except OverloadedError as error:
            cause = error.metadata["cause"]
            model = "" if cause.startswith("tenant_") else request.model
            self._count_refusal(request, cause, model)
            raise
        self.stats.sessions[self.tenants.label(request.tenant), "admitted"] += 1
        return route

    def place_background(self, request: SessionRequest, fleet: FleetView, now: float) -> Route:
        """Where a session goes that nobody has asked for yet; its class is LOW. It is not
        counted: not at its tenant, whose real chats are not to wait or to be refused for it, and
        not in prices. Raises OverloadedError if others wait or it would, and what placement
        raises."""
        request = replace(request, priority=Priority.LOW)
        route = None
        if not self._queue.length(request.model):
            route = choose_background_route(request, fleet, self.policy, now)
        if route is None:
            raise OverloadedError(
                "no replica has time left for what nobody has asked for yet",
                retry_delay_ms=_BACKGROUND_RETRY_MS,
                metadata={"cause": "background"},
            )
        return route

    def priority(self, session_id: int) -> Priority:
        """The class of a session that was let in."""
        return self._sessions[session_id].request.priority

    def is_waking(self, session_id: int) -> bool:
        """Whether a session that waits does so for a replica to be started."""
        return self._sessions[session_id].is_waking

    def dequeue(self, fleet: FleetView, now: float) -> Iterator[Dequeued]:
        """Sessions that leave the queue now. The caller places each before it asks for the next,
        so that placement counts it."""
        tried: set[int] = set()
        has_room = True
        while has_room:
            has_room = False
            for head in self._queue.heads(now):
                if head.session.session_id in tried:
                    continue
                tried.add(head.session.session_id)
                if (dequeued := self._try(head, fleet, now)) is not None:
                    yield dequeued
                    has_room = True
                    break

    def close(self, session_id: int, upto: int, now: float, *, was_taken: bool = True) -> None:
        """End a session whose reply has `upto` tokens; `was_taken`: whether the replica that it was
        sent to accepted it. Unknown sessions, which were refused, are ignored."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        request = session.request
        self._address_limit.close(request.flow, request.address_hash, request.priority, now)
        session.is_placed &= was_taken
        if session.is_waiting:
            self._give_up(session)
        used_tokens = session.used_tokens(upto)
        self.tenants.close(
            request.tenant,
            session.reservation_id,
            unused_tokens=max(0, session.reserved_tokens - used_tokens),
            duration_s=now - session.arrived_at,
            now=now,
        )
        self.stats.tokens[(self.tenants.label(request.tenant),)] += used_tokens
        if session.is_placed:
            self._charge(session, upto)

    def cost(self, session_id: int, upto: int) -> Cost | None:
        """Cost of the whole chat of an open session, earlier runs included, if its reply has `upto`
        tokens; None if no price applies, as to sessions of `place_background`."""
        session = self._sessions.get(session_id)
        return None if session is None else self._cost(session, upto)

    def expire(self, now: float) -> None:
        """Refuse sessions that have waited too long; `take_refused` returns them."""
        for session in self._queue.expire(now):
            self._give_up(session)
            deadline_at = session.request.deadline_at
            if deadline_at is not None and deadline_at <= now:
                error: OutriderError = DeadlineError(
                    "the deadline passed before a replica had room; leave the session more time"
                )
                self._refused.append((session.session_id, error))
            else:
                self._refuse_waiting(session, "wake_up" if session.is_waking else "slo", now)

    def take_refused(self) -> list[tuple[int, OutriderError]]:
        """Sessions that waited and were refused since the last call, and why. The caller ends them,
        which calls `close`."""
        refused = self._refused
        self._refused = []
        return refused

    def _cost(self, session: AdmittedSession, upto: int) -> Cost | None:
        request = session.request
        reply_tokens = max(upto, request.num_committed)
        return self._prices.cost(request.tenant, request.model, request.prompt_tokens, reply_tokens)

    def _charge(self, session: AdmittedSession, upto: int) -> None:
        cost = self._cost(session, upto)
        if cost is None:
            return
        request = session.request
        nanos = self._charges.charge(request.chat_digest, cost.amount_nanos)
        if nanos:
            self.stats.costs_nanos[self.tenants.label(request.tenant), request.model] += nanos

    def _reserve(
        self, session_id: int, request: SessionRequest, fleet: FleetView, now: float
    ) -> AdmittedSession:
        """Count the session in at its tenant and its address. Raises OverloadedError,
        InvalidRequestError."""
        # All that it resumes after is computed, however much that is.
        num_left = max(0, request.max_tokens - request.num_committed)
        tokens = request.prefill_tokens + num_left
        is_resumed, priority = request.is_resumed, request.priority
        reservation = self.tenants.open(request.tenant, tokens, now, is_resumed=is_resumed)
        max_wait_s = self.policy.max_wait_s(Priority.LOW if is_resumed else priority)
        is_waking = fleet.wakes(request)
        if is_waking:
            max_wait_s = max(max_wait_s, self._wake_up.max_wait_s)
        expires_at = now + max_wait_s
        session = self._sessions[session_id] = AdmittedSession(
            session_id=session_id,
            request=request,
            queue_priority=QueuePriority.RESUMED if is_resumed else QueuePriority(priority),
            reserved_tokens=tokens,
            weight=self.tenants.policy(request.tenant).weight,
            reservation_id=reservation,
            arrived_at=now,
            expires_at=min(expires_at, request.deadline_at or expires_at),
            replica_set=fleet.replica_set(request),
            is_waking=is_waking,
        )
        self._address_limit.open(request.flow, request.address_hash, priority)
        return session

    def _route_at_once(
        self, session: AdmittedSession, fleet: FleetView, now: float
    ) -> Route | None:
        """A route without waiting; None if other sessions come first or there is no room."""
        sub_queue = self._queue.find(session)
        if sub_queue is not None and sub_queue.num_ahead(session.queue_priority, session.flow):
            return None
        route = choose_route(session, session.queue_priority, fleet, self.policy, now)
        if route is not None:
            self._count_route(session, route, now)
            if sub_queue is not None:
                sub_queue.count_bypass()
        return route

    def _enqueue(self, session: AdmittedSession, now: float) -> None:
        """Raises OverloadedError."""
        rate = self._rates.setdefault(session.request.model, QueueRate())
        if session.is_waking:
            rate.pause()
        elif session.queue_priority is not QueuePriority.RESUMED:
            self._check_wait(session, rate, now)
        self._make_room(session, rate, now)
        self._queue.push(session)
        rate.joined(now)

    def _check_wait(self, session: AdmittedSession, rate: QueueRate, now: float) -> None:
        """Raises OverloadedError if the predicted wait is longer than the longest one allowed."""
        sub_queue = self._queue.find(session)
        num_ahead = sub_queue.num_ahead(session.queue_priority, session.flow) if sub_queue else 0
        wait_s = rate.interval_s(now) * (num_ahead + 1)
        priority = session.request.priority
        limit_s = self.policy.max_wait_s(priority)
        if rate.is_known and wait_s > limit_s:
            raise OverloadedError(
                f"about {wait_s:.1f} s would pass before a replica had room, and "
                f"{priority.name} sessions wait {limit_s:g} s at most; try again later",
                retry_delay_ms=delay_ms(rate.retry_delay_s(wait_s - limit_s, now)),
                metadata={"cause": "slo"},
            )

    def _make_room(self, session: AdmittedSession, rate: QueueRate, now: float) -> None:
        """Shed a waiting session if the queue is full. Raises OverloadedError if none has to leave
        for this one."""
        model = session.request.model
        shed = self._queue.shed_priority(model, session.queue_priority)
        if shed is None:
            return
        victim = self._queue.victim(model, shed, session.queue_priority, session.flow)
        if victim is None:
            raise OverloadedError(
                f"{self._queue.length(model)} sessions already wait for model {model}, and "
                f"{session.request.priority.name} ones have their share of the queue; try again "
                "later",
                retry_delay_ms=delay_ms(rate.retry_delay_s(0.0, now)),
                metadata={"cause": "queue"},
            )
        self._give_up(victim)
        self._refuse_waiting(victim, "shed", now)

    def _try(self, head: Head, fleet: FleetView, now: float) -> Dequeued | None:
        """Take the head of a sub-queue if a replica has room for it; else None."""
        session = head.session
        try:
            route = choose_route(session, head.backlog_priority, fleet, self.policy, now)
        except OutriderError as error:
            self._give_up(session)
            return Dequeued(session.session_id, error)
        if route is None:
            return None
        self._rates[session.request.model].served(now)
        self._queue.pop(session, head.backlog_priority)
        self._count_route(session, route, now)
        return Dequeued(session.session_id, route)

    def _give_up(self, session: AdmittedSession) -> None:
        """A session leaves the queue without a replica."""
        self._queue.remove(session)
        self._rates[session.request.model].gave_up()

    def _refuse_waiting(self, session: AdmittedSession, cause: str, now: float) -> None:
        request = session.request
        rate = self._rates[request.model]
        waited_s = now - session.arrived_at
        lacked = "was started" if session.is_waking else "had room"
        error = OverloadedError(
            f"after {waited_s:.1f} s in the queue no replica {lacked} for this "
            f"{request.priority.name} session; try again later",
            retry_delay_ms=delay_ms(rate.retry_delay_s(0.0, now)),
            metadata={"cause": cause},
        )
        self._count_refusal(request, cause, request.model)
        self._refused.append((session.session_id, error))

    def _count_route(self, session: AdmittedSession, route: Route, now: float) -> None:
        session.is_placed = True
        # Ids and hashes of a long prompt, which nobody asks for any more.
        request = session.request = replace(session.request, prompt=None)
        wait_ms = (now - session.arrived_at) * 1000.0
        self.stats.waits_ms.append((request.priority, request.model, wait_ms))
        if route.spill_cause:
            self.stats.spilled[route.home, route.decision.region, route.spill_cause] += 1

    def _count_refusal(self, request: SessionRequest, cause: str, model: str) -> None:
        self.stats.refused[request.priority.name, cause, model] += 1
        self.stats.sessions[self.tenants.label(request.tenant), "refused"] += 1
