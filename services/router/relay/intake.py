"""Sessions on their way from their edge to their first replica, by admission control and its queue.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from outrider.errors import (
    DrainingError,
    EmptyPromptError,
    OutriderError,
    OverloadedError,
    PromptTooLongError,
)
from outrider.session.runs import check_run
from outrider.session.types import Priority
from outrider.v1 import common_pb2
from services.router.admission.admission import Admission
from services.router.admission.routing import LiveFleetView, Route
from services.router.autoscale.advisor import AutoscaleAdvisor, FleetKey
from services.router.fleet.registry import Registry
from services.router.recent_replies import RecentReplies, Reply
from services.router.relay import frames
from services.router.relay.dispatch import Dispatch
from services.router.relay.frames import RelayedSession, Up
from services.router.relay.poison import poisonous_request_error
from services.router.relay.sessions import SessionInput, SessionTable
from services.router.session_request import SessionRequest

Ending: TypeAlias = tuple[RelayedSession, OutriderError]
"""A session to end, and why."""

RETRY_INTERVAL_S: Final = 0.005
"""Least time between two tries to place those in the queue because of load reports."""
_SHORT_TOKENS: Final = 1024
"""Prompts up to this length are not checked against the replicas' context: every replica has room
for them, or says that it has not."""
CAPACITY_CAUSES: Final = frozenset({"queue", "slo", "shed"})
"""Causes of a refusal that more replicas would have prevented."""


class RunDeduplicator:
    """The latest run of every chat that brings a request id.

    A client that turns to another edge opens its chat anew behind what it has. If the first edge is
    not dead but starved or cut off, it keeps the old run for as long as it remembers its chats
    (`edge.resumption.window_s`), and a place on a replica is taken for nobody. If the old run was
    lost meanwhile, that edge opens it again. That is refused: the client reads the later run.

    Edges bind request ids to the trust group they are of. A run is of the same chat if prompt and
    sampling are the same too: an id that is used for something else stops nobody's run.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str, bytes], RelayedSession] = {}
        self._keys: dict[int, tuple[str, str, bytes]] = {}
        """Key of each run, by router session id."""

    def __len__(self) -> int:
        return len(self._latest)

    def began(self, session: RelayedSession) -> RelayedSession | None:
        """Record a session; returns the older run of the same chat, on another stream, that it
        continues. A session without tokens may be a deliberate copy: it replaces no run. Raises
        DuplicateSessionError, and records nothing, for a run that is earlier than the latest."""
        if not session.open_frame.open.request_id:
            return None
        key = frames.run_key(session)
        older = self._latest.get(key)
        if older is not None:
            check_run(session.request.run, older.request.run)
        self._keys[session.router_session_id] = key
        self._latest[key] = session
        if older is None or session.num_committed == 0 or older.edge_stream == session.edge_stream:
            return None
        return older

    def ended(self, session: RelayedSession) -> None:
        """A session is over."""
        key = self._keys.pop(session.router_session_id, None)
        if key is not None and self._latest.get(key) is session:
            del self._latest[key]


class Intake:
    """Lets sessions in, for the switch to carry out."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        admission: Admission,
        fleet_view: LiveFleetView,
        autoscale: AutoscaleAdvisor,
        recent: RecentReplies,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._admission = admission
        self._fleet_view = fleet_view
        self._autoscale = autoscale
        self._recent = recent
        self._waiting: dict[int, RelayedSession] = {}
        """In the queue, by router session id."""
        self.runs = RunDeduplicator()
        self._is_draining = False
        self._retried_at = 0.0
        self._num_transitions = 0
        """Of the registry, at the last refresh."""

    @property
    def num_waiting(self) -> int:
        """Sessions in the queue."""
        return len(self._waiting)

    def is_retry_due(self, now: float) -> bool:
        """Whether those in the queue should be tried again after a load report: reports of a large
        fleet come faster than tries are worth."""
        is_due = bool(self._waiting) and now - self._retried_at >= RETRY_INTERVAL_S
        if is_due:
            self._retried_at = now
        return is_due

    def is_waking(self, session: RelayedSession) -> bool:
        """Whether it waits for a replica to be started."""
        session_id = session.router_session_id
        return session_id in self._waiting and self._admission.is_waking(session_id)

    def waiting(self) -> list[SessionRequest]:
        """Requests of the sessions in the queue."""
        return [session.request for session in self._waiting.values()]

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self._is_draining = True

    def open(self, edge_stream: int, edge_session_id: int, frame: Up, now: float) -> RelayedSession:
        """A new session in state PLACING; its frame names its model. Raises UnavailableError,
        DuplicateSessionError, OverloadedError, MalformedFrameError."""
        if self._is_draining:
            raise DrainingError("this router is stopping; use another", retry_delay_ms=1000)
        tenant = self._admission.tenants.policy(frame.open.tenant)
        frame.open.allows_inexact = tenant.allow_inexact  # whatever the edge says
        request = frames.read_request(frame.open, now, allows_inexact=tenant.allow_inexact)
        return self._table.open(edge_stream, edge_session_id, request, frame, frame.ByteSize(), now)

    def place(self, session: RelayedSession, now: float, ids: bytes | None = None) -> list[Ending]:
        """A session whose prompt is ids goes to a replica, or into the queue, where it may take
        another's place. `ids`: as in `PromptCache.of`."""
        try:
            self._check_prompt(session.request)
            self._catch_up(now)
            session_id = session.router_session_id
            request = self._dispatch.request_of(session, ids)
            if request.is_background:
                found = self._admission.place_background(request, self._fleet_view, now)
                session.request = replace(request, priority=Priority.LOW)
                session.open_frame.open.priority = common_pb2.PRIORITY_LOW
                self._dispatch_to(session, found, now)
                return []
            route = self._admission.open(session_id, request, self._fleet_view, now)
            priority = self._admission.priority(session_id)
            session.request = replace(session.request, priority=priority)
            session.open_frame.open.priority = common_pb2.Priority.ValueType(priority)
            if route is not None:
                self._dispatch_to(session, route, now)
            else:
                self._table.advance(session, SessionInput.QUEUED, now)
                self._waiting[session.router_session_id] = session
        except OutriderError as error:
            self._note_lack(session, error, now)
            return [*self._refused(now), (session, error)]
        return self._refused(now)

    def retry(self, now: float) -> Iterator[Ending]:
        """Place queued sessions for which there is room now."""
        if not self._waiting:
            return
        self._catch_up(now)
        for dequeued in self._admission.dequeue(self._fleet_view, now):
            session = self._waiting.pop(dequeued.session_id)
            if isinstance(dequeued.outcome, OutriderError):
                yield session, dequeued.outcome
                continue
            try:
                self._dispatch_to(session, dequeued.outcome, now)
            except OutriderError as error:
                yield session, error

    def expire(self, now: float) -> list[Ending]:
        """Refuse sessions that have waited too long; returns how they end."""
        self.refresh(now)
        self._admission.expire(now)
        return self._refused(now)

    def refresh(self, now: float) -> None:
        """The fleet has changed: refresh the view of it."""
        self._num_transitions = self._registry.num_transitions
        self._fleet_view.refresh(self._registry, now)

    def _catch_up(self, now: float) -> None:
        """Refresh the view if a replica's state has changed: placement knows, and a session that it
        has no replica for any more is refused or waits by what the view says."""
        if self._num_transitions != self._registry.num_transitions:
            self.refresh(now)

    def first_token(self, session: RelayedSession, now: float) -> None:
        """A session had its first token."""
        if session.request.is_background:
            return  # its time is nobody's experience
        replica = self._registry.find(session.replica)
        if replica is not None:
            fleet = FleetKey(replica.region, replica.model_name)
            ttft_ms = (now - session.opened_at) * 1000.0
            self._recent.first_token(fleet, ttft_ms, now)
            self._autoscale.record_ttft(
                fleet,
                ttft_ms,
                now,
                prompt_ms=session.prompt_ms,
                round_trip_ms=replica.rtt.smoothed_ms,
            )

    def done(self, session: RelayedSession, usage: common_pb2.Usage, now: float) -> None:
        """A session has its whole reply."""
        if session.request.is_background:
            return
        replica = self._registry.find(session.replica)
        if replica is not None:
            fleet = FleetKey(replica.region, replica.model_name)
            reply = Reply(usage.completion_tokens, usage.draft_tokens, usage.accepted_tokens)
            self._recent.ended(fleet, reply, now)

    def ended(self, session: RelayedSession, now: float) -> None:
        """A session ended."""
        self._waiting.pop(session.router_session_id, None)
        self.runs.ended(session)
        was_taken = session.is_announced or session.first_token_at is not None
        self._admission.close(
            session.router_session_id, session.num_committed, now, was_taken=was_taken
        )

    def _check_prompt(self, request: SessionRequest) -> None:
        """Raises EmptyPromptError, and PromptTooLongError for a prompt that leaves no replica room
        for a reply."""
        num_tokens = request.prompt_tokens
        if not num_tokens:
            raise EmptyPromptError("the session has no prompt; send messages or token ids")
        if num_tokens <= _SHORT_TOKENS:
            return
        longest = self._registry.longest_context(request.model)
        if longest and num_tokens >= longest:
            raise PromptTooLongError.of(num_tokens, longest - 1)

    def _dispatch_to(self, session: RelayedSession, route: Route, now: float) -> None:
        """Place the session on `route`. Raises DeadlineError; PoisonousRequestError for a request
        that crashed replicas before it was opened here; and the error of `Dispatch.place` if the
        replica's buffer is full and another replica is needed."""
        if session.losses.is_poisonous:
            raise poisonous_request_error(session.losses)
        frames.renew_deadline(session, now)
        if route.spill_cause:
            self._autoscale.record_shortage(FleetKey(route.home, session.request.model), now)
        if not self._dispatch.put(session, route.decision, now):
            self._dispatch.place(session, now)

    def _refused(self, now: float) -> list[Ending]:
        """Endings of the queued sessions that are refused."""
        endings = []
        for router_session_id, error in self._admission.take_refused():
            session = self._waiting.pop(router_session_id)
            self._note_lack(session, error, now)
            endings.append((session, error))
        return endings

    def _note_lack(self, session: RelayedSession, error: OutriderError, now: float) -> None:
        """Tell the autoscaling advice of a refusal that more replicas at home would have
        prevented."""
        if isinstance(error, OverloadedError) and error.metadata.get("cause") in CAPACITY_CAUSES:
            home = self._fleet_view.home(session.request)
            self._autoscale.record_shortage(FleetKey(home, session.request.model), now)
