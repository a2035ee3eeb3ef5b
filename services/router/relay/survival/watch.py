"""What replicas do to the sessions they have, and what follows from it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from outrider.errors import CancelledError, EngineError, OutriderError, VocabularyMismatchError
from outrider.peers.health import PeerState, Signal
from outrider.v1 import inference_pb2, router_pb2
from outrider.wire import errors
from services.router.admission.admission import Admission
from services.router.fleet.load import Load
from services.router.fleet.registry import Registry
from services.router.relay import assignment
from services.router.relay.dispatch import Dispatch
from services.router.relay.lifecycle import Input, State
from services.router.relay.sessions import Session, SessionTable
from services.router.relay.survival.moves import Moves, lost, poisonous
from services.router.relay.survival.silence import Silence

Up = router_pb2.RouteRequest
Down = router_pb2.RouteResponse

_INPUTS: Final = {
    "opened": Input.OPENED,
    "commit": Input.COMMIT,
    "done": Input.DONE,
    "error": Input.ERROR,
}
_REFUSALS: Final = frozenset({errors.GrpcCode.RESOURCE_EXHAUSTED, errors.GrpcCode.UNAVAILABLE})
"""A replica that ends a session with one of these did not take it: another one may."""
_STALL_CHECK_S: Final = 1.0
_REPORTS: Final = 0.75
"""A replica that told its load within this part of the limit of silence is at work: if no session
gets a token, it is its engine that hangs."""


class Leaving(NamedTuple):
    """A session that leaves its replica, and why."""

    session: Session[Up]
    event: Input
    error: OutriderError


class Said(NamedTuple):
    """What a replica's frame means for its session."""

    event: Input
    response: Down | None
    """For the edge."""
    error: OutriderError | None = None


class Watch:
    """Looks after the sessions on replicas, for the switch to carry out."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        registry: Registry,
        moves: Moves,
        silence: Silence,
        admission: Admission,
    ) -> None:
        self._table = table
        self._dispatch = dispatch
        self._registry = registry
        self._moves = moves
        self._silence = silence
        self._admission = admission
        self._stalls_at = 0.0

    def detached(
        self, replica: str, stream: int, now: float, *, is_own: bool = False
    ) -> list[Leaving]:
        """A replica's stream broke; by this router's fault (`is_own`) it says nothing of any
        request."""
        self._silence.detached(stream)
        sessions = self._table.detach_stream(stream)
        cancelled = CancelledError("The session was cancelled.")
        closing = [s for s in sessions if s.state is State.CLOSING]
        others = (s for s in sessions if s.state is not State.CLOSING)
        leaving = [Leaving(session, Input.LOST, cancelled) for session in closing]
        leave = self._depart if is_own else self._die
        return [*leaving, *leave(others, lost(replica, "was lost"))]

    def read(self, stream: int, session: Session[Up], response: Down, now: float) -> Said | None:
        """A frame of a live session; None for one of no known kind."""
        frame = response.frame
        event = _INPUTS.get(frame.WhichOneof("kind") or "")
        if event is None:
            return None
        self._silence.heard(stream, now)
        session.heard_at = now
        if event is Input.ERROR:
            return self._failed(session, response, now)
        if event is Input.COMMIT:
            self._committed(session, frame.commit, now)
        elif event is Input.DONE:
            cost = self._admission.cost(session.relayed, session.upto)
            assignment.add_up(frame.done, session, cost, now)
        else:
            self._registry.opened(session.replica, session.relayed, frame.opened.held_ms, now)
            if not self._table.announce(session):
                response = Down(frame=_moved(frame.opened, max(0, session.lost_epoch)))
        response.frame.session = session.number
        return Said(event, response)

    def _failed(self, session: Session[Up], response: Down, now: float) -> Said:
        """Its replica ended it."""
        detail = response.frame.error
        error = errors.from_detail(detail)
        response.frame.session = session.number
        final = Said(Input.ERROR, response, error)
        if session.state is State.CLOSING:
            return final
        if isinstance(error, EngineError):
            self._registry.failed(session.replica, error.message, now)
            ((_, event, why),) = self._die([session], error, excuses=False)
            return Said(event, None, why)
        # A replica that came back with another vocabulary, before this router heard of it.
        is_refusal = detail.grpc_code in _REFUSALS or isinstance(error, VocabularyMismatchError)
        if not is_refusal or not self._may_leave(session):
            return final
        self._moves.refused(session)
        return Said(Input.LEFT, None, error)

    def silent(self, now: float) -> list[Leaving]:
        """What time alone says: the sessions of replicas that hang."""
        found = [
            leaving for stream in self._dispatch.streams for leaving in self._hung(stream, now)
        ]
        if now - self._stalls_at >= _STALL_CHECK_S:
            self._stalls_at = now
            found += self._stalled(now)
        for leaving in found:
            session = leaving.session
            self._dispatch.cancel(session.stream, session.leg, leaving.error)
        return found

    def _committed(self, session: Session[Up], commit: inference_pb2.Commit, now: float) -> None:
        tokens = assignment.tokens_of(commit, session.upto)
        commit.ClearField("accepted_ids")  # the edge has them
        if session.began_at is None:
            session.began_at = now
        self._table.committed(session, commit.upto, tokens)
        if not session.record.is_proven:
            self._moves.served(session, now)
            self._registry.served(session.replica, session.relayed, now)

    def _may_leave(self, session: Session[Up]) -> bool:
        """A session that nothing is lost of is tried once more, the others as long as it takes."""
        return session.open is not None and (session.is_under_way or len(session.tried) < 2)

    def _hung(self, stream: int, now: float) -> Iterator[Leaving]:
        replica = self._registry[self._dispatch.replica_of(stream)]
        load = replica.load or Load()
        is_suspect = replica.state is PeerState.SUSPECT  # it does not report either
        cost = (0.0, 0.0) if is_suspect else (load.fixed_ms, load.row_ms)
        limit_s = self._silence.limit_s(*cost)
        if not self._silence.is_quiet(stream, limit_s, now):
            return
        name, reports = replica.name, now - replica.reported_at < _REPORTS * limit_s
        sessions = [s for s in self._table.stream_sessions(stream) if s.state is not State.CLOSING]
        waits = any(
            s.state is State.STREAMING and self._silence.is_late(s.heard_at, limit_s, now)
            for s in sessions
        )
        if waits and reports and not is_suspect:
            self._registry.hung(name, "no tokens in the middle of replies", now)
            yield from self._die(sessions, lost(name, "hung"))
        elif waits or is_suspect:
            # Stopped, starved or cut off, with all it has: which says nothing of any request.
            self._registry.signal(name, Signal.SILENT, now, "no tokens and no load reports")
            yield from self._depart(sessions, lost(name, "fell silent"))

    def _stalled(self, now: float) -> Iterator[Leaving]:
        for stream in self._dispatch.streams:
            name = self._dispatch.replica_of(stream)
            for session in self._table.stream_sessions(stream):
                is_waiting = session.state is State.STREAMING and session.open is not None
                if is_waiting and self._silence.is_stalled(session.heard_at, now):
                    # Where sessions queue, others have the better right: that is no failure.
                    if not self._registry[name].is_busy:
                        self._registry.failed(name, "a session made no progress", now)
                    yield Leaving(session, Input.LEFT, lost(name, "made no progress"))

    def _die(
        self, sessions: Iterable[Session[Up]], why: OutriderError, *, excuses: bool = True
    ) -> Iterator[Leaving]:
        sessions = list(sessions)
        culprit = self._moves.died(sessions, excuses=excuses)
        if culprit is not None:
            yield Leaving(culprit, Input.LOST, poisonous(culprit))
        yield from _leaving((session for session in sessions if session is not culprit), why)

    def _depart(self, sessions: Iterable[Session[Up]], why: OutriderError) -> Iterator[Leaving]:
        """They leave a replica that may be well: nothing speaks against any of them."""
        sessions = list(sessions)
        for session in sessions:
            self._moves.departed(session)
        yield from _leaving(sessions, why)


def _leaving(sessions: Iterable[Session[Up]], why: OutriderError) -> Iterator[Leaving]:
    """They go elsewhere, those that are not known any more excepted."""
    for session in sessions:
        yield Leaving(session, Input.LOST if session.open is None else Input.LEFT, why)


def _moved(opened: inference_pb2.SessionOpened, lost_epoch: int) -> inference_pb2.SessionDown:
    """What an edge is told that was told before that its session is open."""
    moved = inference_pb2.SessionMoved(
        replica=opened.replica,
        region=opened.region,
        max_drafts=opened.max_drafts,
        epoch=lost_epoch,
    )
    return inference_pb2.SessionDown(moved=moved)
