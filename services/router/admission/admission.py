"""The gate before placement: who comes in, goes on at once, waits, is refused. Pure.

What is given up under load, in this order: waiting in the nearest region within the objective of
the class; another region; waiting for any; LOW sessions that wait; new sessions, with the time at
which the queue, at the pace at which it moves, has room for them. Who has a replica keeps it.
Before any of it the replicas give up drafts and large prefill chunks by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from outrider.cost import Cost
from outrider.errors import DeadlineError, OutriderError, OverloadedError
from outrider.session_types import Priority
from services.router.admission.choosing import Route, Scout, choose
from services.router.admission.counting.charges import Charges
from services.router.admission.counting.lengths import LengthPolicy
from services.router.admission.counting.prices import PriceTable
from services.router.admission.crowds import Crowds
from services.router.admission.policy import AdmissionPolicy, Lane
from services.router.admission.queue.drain import Drain
from services.router.admission.queue.waiting import Pool, WaitingRoom
from services.router.admission.tally import Tally
from services.router.admission.tenants.accounts import TenantPolicy, Tenants, delay_ms
from services.router.admission.ticket import Arrival, Ticket, share_of


@dataclass(frozen=True, slots=True)
class Turn:
    """A waiting session's turn."""

    session: int
    outcome: Route | OutriderError
    """Where it goes now, or why it cannot go anywhere."""


class Admission:
    """Every session from `open` to `leave`. Verbs take `now` in seconds."""

    def __init__(
        self,
        policy: AdmissionPolicy,
        tenants: Iterable[TenantPolicy] = (),
        lengths: LengthPolicy | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        self.policy = policy
        self.tenants = Tenants(tenants)
        self._lengths = lengths or LengthPolicy()
        self._prices = prices or PriceTable()
        self._charges = Charges()
        self._crowds = Crowds(policy.max_outranking_per_address)
        self.tally = Tally()
        self._room = WaitingRoom(policy.max_waiting, policy.ageing_s)
        self._tickets: dict[int, Ticket] = {}
        self._drains: dict[str, Drain] = {}
        """By model: only models that replicas have are waited for."""
        self._refused: list[tuple[int, OutriderError]] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def waiting(self) -> dict[Priority, int]:
        """Sessions in the queue by class; those that had started are HIGH."""
        found = {priority: self._room.num_waiting[Lane(priority)] for priority in Priority}
        found[Priority.HIGH] += self._room.num_waiting[Lane.STARTED]
        return found

    def grant(self, arrival: Arrival, now: float) -> Priority:
        """The class that a session gets: what it asks for, as far as its tenant, the length of its
        prompt and, of a client without a key, the number of sessions from its address allow."""
        num_own = arrival.request.prompt_tokens - arrival.num_resumed
        return min(
            self.tenants.grant(arrival.tenant, arrival.priority),
            self._lengths.highest(num_own),
            self._crowds.highest(share_of(arrival), arrival.address, now),
        )

    def open(self, arrival: Arrival, scout: Scout, now: float) -> Route | None:
        """Let a session in: where it goes now, or None if it waits for `wake`.

        Raises OverloadedError with `cause` in its metadata (tenant_sessions, tenant_tokens, queue,
        slo), InvalidRequestError, and what placement raises; then it is not counted as in.
        """
        priority = self.grant(arrival, now)
        try:
            ticket = self._enter(arrival, priority, now)
            try:
                route = self._pass(ticket, scout, now)
                if route is None:
                    self._wait(ticket, now)
            except OutriderError:
                self.leave(ticket.session, 0, now)
                raise
        except OverloadedError as error:
            self._count_refusal(arrival.tenant, priority, error.metadata["cause"])
            raise
        self.tally.sessions[self.tenants.label(arrival.tenant), "admitted"] += 1
        return route

    def wake(self, scout: Scout, now: float) -> Iterator[Turn]:
        """The sessions whose turn has come, one by one: the caller sends each on its way before
        it asks for the next, so that placement knows."""
        for pool in self._room.pools():
            while (turn := self._next(pool, scout, now)) is not None:
                yield turn

    def leave(self, session: int, upto: int, now: float, *, was_taken: bool = True) -> None:
        """A session ended, its reply having `upto` tokens; `was_taken` is whether a replica that it
        went to took it on. Unknown ones, which were refused, are ignored."""
        ticket = self._tickets.pop(session, None)
        if ticket is None:
            return
        self._crowds.leave(ticket.share, ticket.address, ticket.priority, now)
        ticket.is_placed &= was_taken
        if ticket.is_waiting:
            self._give_up(ticket)
        used = ticket.used_tokens(upto)
        unused, stay_s = max(0, ticket.cost_tokens - used), now - ticket.arrived_at
        self.tenants.leave(ticket.tenant, ticket.reservation, unused, stay_s, now)
        self.tally.tokens[(self.tenants.label(ticket.tenant),)] += used
        if ticket.is_placed:
            self._charge(ticket, upto)

    def cost(self, session: int, upto: int) -> Cost | None:
        """What the whole chat of a live session costs when its reply has `upto` tokens, those that
        the session came with included; None where no price applies."""
        return self._cost(self._tickets[session], upto)

    def _cost(self, ticket: Ticket, upto: int) -> Cost | None:
        tokens = ticket.own_prompt_tokens, max(upto, ticket.num_resumed)
        return self._prices.cost(ticket.tenant, ticket.request.model, *tokens)

    def _charge(self, ticket: Ticket, upto: int) -> None:
        cost = self._cost(ticket, upto)
        nanos = self._charges.add(ticket.chat, cost.amount_nanos) if cost is not None else 0
        if nanos:
            label = self.tenants.label(ticket.tenant)
            self.tally.costs_nanos[label, ticket.request.model] += nanos

    def expire(self, now: float) -> None:
        """Refuse who has waited too long; `take_refused` tells."""
        for ticket in self._room.expire(now):
            self._give_up(ticket)
            if ticket.deadline_at is not None and ticket.deadline_at <= now:
                error: OutriderError = DeadlineError(
                    "The deadline passed before a replica had room: leave the session more time."
                )
                self._refused.append((ticket.session, error))
            else:
                self._refuse_waiting(ticket, "slo", now)

    def take_refused(self) -> list[tuple[int, OutriderError]]:
        """Sessions that waited and are refused since the last call, and why. The caller ends them,
        which calls `leave`."""
        refused, self._refused = self._refused, []
        return refused

    def _enter(self, arrival: Arrival, priority: Priority, now: float) -> Ticket:
        cost = arrival.request.prompt_tokens + arrival.max_tokens - arrival.num_resumed
        reservation = self.tenants.enter(arrival.tenant, cost, now, has_started=arrival.has_started)
        lane = Lane.STARTED if arrival.has_started else Lane(priority)
        patience = Priority.LOW if arrival.has_started else priority
        expires_at = now + self.policy.max_wait_s(patience)
        ticket = self._tickets[arrival.session] = Ticket(
            session=arrival.session,
            request=arrival.request,
            tenant=arrival.tenant,
            share=share_of(arrival),
            address=arrival.address,
            priority=priority,
            lane=lane,
            cost_tokens=cost,
            weight=self.tenants.policy(arrival.tenant).weight,
            reservation=reservation,
            arrived_at=now,
            deadline_at=arrival.deadline_at,
            expires_at=min(expires_at, arrival.deadline_at or expires_at),
            num_resumed=arrival.num_resumed,
            chat=arrival.chat,
        )
        self._crowds.enter(ticket.share, ticket.address, priority)
        return ticket

    def _pass(self, ticket: Ticket, scout: Scout, now: float) -> Route | None:
        """Straight to a replica, unless somebody is in line before it."""
        pool = self._room.pool(ticket)
        if pool is not None and pool.num_ahead(ticket.lane, ticket.share):
            return None
        route = choose(ticket, ticket.lane, scout, self.policy, now)
        if route is not None:
            self._count_route(ticket, route, now)
            if pool is not None:
                pool.passed()
        return route

    def _wait(self, ticket: Ticket, now: float) -> None:
        """Into the queue. Raises OverloadedError."""
        model = ticket.request.model
        drain = self._drains.setdefault(model, Drain())
        if ticket.lane is not Lane.STARTED:
            self._check_wait(ticket, drain, now)
            self._make_room(ticket, drain, now)
        self._room.add(ticket)
        drain.joined(now)

    def _check_wait(self, ticket: Ticket, drain: Drain, now: float) -> None:
        """Raises OverloadedError for one that would be refused later anyway."""
        pool = self._room.pool(ticket)
        num_ahead = pool.num_ahead(ticket.lane, ticket.share) if pool else 0
        wait_s = drain.interval_s(now) * (num_ahead + 1)
        limit_s = self.policy.max_wait_s(ticket.priority)
        if drain.is_known and wait_s > limit_s:
            raise OverloadedError(
                f"About {wait_s:.1f} s would pass before a replica had room, and "
                f"{ticket.priority.name} sessions wait {limit_s:g} s at most: try again later.",
                retry_delay_ms=delay_ms(drain.promise_s(wait_s - limit_s, now)),
                metadata={"cause": "slo"},
            )

    def _make_room(self, ticket: Ticket, drain: Drain, now: float) -> None:
        """Raises OverloadedError if nobody has to leave for it."""
        bar = self._room.bar(ticket.lane)
        if bar is None:
            return
        victim = self._room.victim(bar, ticket.lane, ticket.share)
        if victim is None:
            raise _full(len(self._room), ticket, drain, now)
        self._give_up(victim)
        self._refuse_waiting(victim, "shed", now)

    def _next(self, pool: Pool, scout: Scout, now: float) -> Turn | None:
        for ticket, room in pool.heads(now):
            try:
                route = choose(ticket, room, scout, self.policy, now)
            except OutriderError as error:
                self._give_up(ticket)
                return Turn(ticket.session, error)
            if route is not None:
                self._drains[ticket.request.model].left(now)
                self._room.serve(ticket, room)
                self._count_route(ticket, route, now)
                return Turn(ticket.session, route)
        return None

    def _give_up(self, ticket: Ticket) -> None:
        self._room.remove(ticket)
        self._drains[ticket.request.model].gave_up()

    def _refuse_waiting(self, ticket: Ticket, cause: str, now: float) -> None:
        drain = self._drains[ticket.request.model]
        waited_s = now - ticket.arrived_at
        error = OverloadedError(
            f"After {waited_s:.1f} s in the queue no replica had room for this "
            f"{ticket.priority.name} session: try again later.",
            retry_delay_ms=delay_ms(drain.promise_s(0.0, now)),
            metadata={"cause": cause},
        )
        self._count_refusal(ticket.tenant, ticket.priority, cause)
        self._refused.append((ticket.session, error))

    def _count_route(self, ticket: Ticket, route: Route, now: float) -> None:
        ticket.is_placed = True
        self.tally.waits_ms.append((ticket.priority, (now - ticket.arrived_at) * 1000.0))
        if route.spilled:
            self.tally.spilled[route.home, route.sight.region, route.spilled] += 1

    def _count_refusal(self, tenant: str, priority: Priority, cause: str) -> None:
        self.tally.refused[priority.name, cause] += 1
        self.tally.sessions[self.tenants.label(tenant), "refused"] += 1


def _full(num_waiting: int, ticket: Ticket, drain: Drain, now: float) -> OverloadedError:
    return OverloadedError(
        f"{num_waiting} sessions wait already, and {ticket.priority.name} ones have their share of "
        "the queue: try again later.",
        retry_delay_ms=delay_ms(drain.promise_s(0.0, now)),
        metadata={"cause": "queue"},
    )
