"""Sessions between their edge and their first replica. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from outrider.errors import DrainingError, OutriderError, OverloadedError, PromptTooLongError
from outrider.session_types import Priority
from outrider.v1 import common_pb2, router_pb2
from outrider.wire.sampling import DEFAULT_MAX_TOKENS
from services.router.admission.admission import Admission
from services.router.admission.choosing import Route
from services.router.admission.ticket import Arrival
from services.router.conductor.conductor import Conductor, Post
from services.router.fleet.registry import Registry
from services.router.placement.request import Request
from services.router.relay import assignment
from services.router.relay.dispatch import Dispatch
from services.router.relay.entry.runs import Runs
from services.router.relay.entry.scout import FleetScout
from services.router.relay.lifecycle import Input
from services.router.relay.sessions import Session, SessionTable

Up = router_pb2.RouteRequest
Ending = tuple[Session[Up], OutriderError]

_SHORT_TOKENS: Final = 1024
"""Prompts that are not looked at: every replica has room for them, or says that it has not."""
_LACKS: Final = frozenset({"queue", "slo", "shed"})
"""Causes of a refusal that more replicas would have prevented."""
_PRIORITIES: Final[dict[int, Priority]] = {int(priority): priority for priority in Priority}


LOOK_S: Final = 0.005
"""Least time between two looks at the fleet for the sake of a report."""


class Entry:
    """Lets sessions in, for the switch to carry out. Endings are sessions to end, and why."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        admission: Admission,
        scout: FleetScout,
        conductor: Conductor,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._admission = admission
        self._scout = scout
        self._conductor = conductor
        self._waiting: dict[int, Session[Up]] = {}
        self.runs = Runs()
        self._is_draining = False
        self._looked_at = 0.0

    @property
    def num_waiting(self) -> int:
        """Sessions in the queue."""
        return len(self._waiting)

    def is_due(self, now: float) -> bool:
        """Whether those in the queue should look again after a report: reports of a large fleet
        come faster than looks are worth."""
        is_due = bool(self._waiting) and now - self._looked_at >= LOOK_S
        self._looked_at = now if is_due else self._looked_at
        return is_due

    def waiting(self) -> list[Request]:
        """What those in the queue want."""
        return [self._dispatch.request_of(session) for session in self._waiting.values()]

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self._is_draining = True

    def admit(self, edge: int, number: int, request: Up, now: float) -> Session[Up]:
        """A new session in state PLACING. Raises UnavailableError, DuplicateSessionError,
        OverloadedError."""
        if self._is_draining:
            raise DrainingError("This router is stopping: use another.", retry_delay_ms=1000)
        session = self._table.open(
            edge, number, request, request.ByteSize(), now, assignment.deadline_at(request, now)
        )
        session.upto = assignment.num_resumed(request.frame.open)
        session.record.num_lost = request.frame.open.lost_replicas
        return session

    def place(self, session: Session[Up], now: float) -> list[Ending]:
        """A session whose prompt is ids goes to a replica, or into the queue, where it may take
        another's place."""
        try:
            arrival = self._arrival(session, now)
            route = self._admission.open(arrival, self._scout, now)
            if route is not None:
                self._go(session, route, now)
            else:
                self._table.advance(session, Input.QUEUED, now)
                self._waiting[session.relayed] = session
        except OutriderError as error:
            self._note_lack(session, error, now)
            return [*self._refused(now), (session, error)]
        return self._refused(now)

    def wake(self, now: float) -> Iterator[Ending]:
        """Those in the queue whose turn has come."""
        if not self._waiting:
            return
        for turn in self._admission.wake(self._scout, now):
            session = self._waiting.pop(turn.session)
            if isinstance(turn.outcome, OutriderError):
                yield session, turn.outcome
                continue
            try:
                self._go(session, turn.outcome, now)
            except OutriderError as error:
                yield session, error

    def expire(self, now: float) -> list[Ending]:
        """What passes with time alone: waits that were too long."""
        self.survey(now)
        self._admission.expire(now)
        return self._refused(now)

    def survey(self, now: float) -> None:
        """The fleet is not what it was."""
        self._scout.survey(self._registry, now)

    def began(self, session: Session[Up], now: float) -> None:
        """A session had its first token."""
        replica = self._registry.find(session.replica)
        if replica is not None:
            ttft_ms = (now - session.opened_at) * 1000.0 - replica.rtt.smoothed_ms
            self._conductor.first_token(Post(replica.region, replica.model_name), ttft_ms, now)

    def left(self, session: Session[Up], now: float) -> None:
        """A session ended."""
        self._waiting.pop(session.relayed, None)
        self.runs.ended(session)
        was_taken = session.is_announced or session.began_at is not None
        self._admission.leave(session.relayed, session.upto, now, was_taken=was_taken)

    def _arrival(self, session: Session[Up], now: float) -> Arrival:
        """Raises EmptyPromptError, PromptTooLongError."""
        assert session.open is not None, "a session that is placed has its open"
        frame = session.open.frame.open
        asked = _PRIORITIES.get(frame.priority)
        num_prompt = frame.ids.prefix_tokens + frame.ids.tail.count
        self._check_window(frame.model, num_prompt)
        asking = Arrival(
            session=session.relayed,
            request=self._dispatch.request_of(session),
            max_tokens=frame.sampling.max_tokens or DEFAULT_MAX_TOKENS,
            tenant=frame.tenant,
            address=frame.address_hash,
            group=frame.cache_salt,
            priority=asked,
            deadline_at=session.deadline_at,
            has_started=session.is_under_way,
            num_resumed=session.upto,
            chat=assignment.chat_of(frame),
        )
        granted = self._admission.grant(asking, now)
        frame.priority = common_pb2.Priority.ValueType(granted)
        request = replace(asking.request, priority=granted)
        return replace(asking, priority=granted, request=request)

    def _check_window(self, model: str, num_prompt: int) -> None:
        """Raises PromptTooLongError for a prompt that leaves no replica room for a reply."""
        if num_prompt <= _SHORT_TOKENS:
            return
        longest = self._registry.longest_context(model)
        if longest and num_prompt >= longest:
            raise PromptTooLongError.of(num_prompt, longest - 1)

    def _go(self, session: Session[Up], route: Route, now: float) -> None:
        """Raises DeadlineError, or what `Dispatch.place` raises where the replica's buffer is full
        and it has to be another one."""
        assert session.open is not None, "a session that is placed has its open"
        assignment.renew_deadline(session.open, session.deadline_at, now)
        if route.spilled:
            self._conductor.lacked(Post(route.home, session.open.frame.open.model), now)
        if not self._dispatch.put(session, route.sight.decision, now):
            self._dispatch.place(session, now)

    def _refused(self, now: float) -> list[Ending]:
        """Those in the queue who are refused."""
        endings = []
        for number, error in self._admission.take_refused():
            session = self._waiting.pop(number)
            self._note_lack(session, error, now)
            endings.append((session, error))
        return endings

    def _note_lack(self, session: Session[Up], error: OutriderError, now: float) -> None:
        """More replicas at home would have helped."""
        if isinstance(error, OverloadedError) and error.metadata.get("cause") in _LACKS:
            request = self._dispatch.request_of(session)
            self._conductor.lacked(Post(self._scout.home(request), request.model), now)
