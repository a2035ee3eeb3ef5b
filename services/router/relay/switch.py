"""Moves session frames between edges and replicas, as the session table says. No I/O, no clock.

Frames are renumbered in place and forwarded as they are: RouteRequest and GenerateRequest (and
their responses) are one and the same on the wire, so no token block is ever copied or re-encoded.
Nothing here waits: a full outlet loses drafts, which are guesses, moves opens elsewhere, and ends
the sessions of an edge that does not read; it never holds up another edge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from outrider.errors import (
    CancelledError,
    DuplicateSessionError,
    MalformedFrameError,
    OutriderError,
    OverloadedError,
    ReplicaLostError,
    UnavailableError,
)
from outrider.v1 import common_pb2, inference_pb2, router_pb2
from outrider.wire import errors as wire_errors
from services.router.placement.place import RETRY_DELAY_MS
from services.router.relay import assignment
from services.router.relay.dispatch import Dispatch
from services.router.relay.journal import Journal
from services.router.relay.lifecycle import Action, Input, State
from services.router.relay.outlet import Outlet
from services.router.relay.sessions import Session, SessionTable

Up: TypeAlias = router_pb2.RouteRequest
Down: TypeAlias = router_pb2.RouteResponse
RelayedSession: TypeAlias = Session[Up]

_DOWN_INPUTS = {
    "opened": Input.OPENED,
    "commit": Input.COMMIT,
    "done": Input.DONE,
    "error": Input.ERROR,
}
_UPWARD = frozenset({Action.KEEP, Action.KEEP_AND_SEND_UP, Action.SEND_UP})
_REFUSALS = frozenset({8, 14})
"""google.rpc.Code RESOURCE_EXHAUSTED and UNAVAILABLE."""


class Switch:
    """All relayed sessions of one router. Verbs are called by the shells with data and `now`."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        journal: Journal,
        *,
        default_model: str,
        tokenize: Callable[[RelayedSession], None],
    ) -> None:
        """`tokenize` is asked for sessions that bring messages; `tokenized` or `fail` answers."""
        self._table = table
        self._dispatch = dispatch
        self._journal = journal
        self._default_model = default_model
        self._tokenize = tokenize
        self._edges: dict[int, Outlet[Down]] = {}
        self._half_closed: set[int] = set()
        self._is_draining = False

    # --- the two sides come and go ---

    def attach_edge(self, outlet: Outlet[Down]) -> int:
        """A new edge stream; its number for the other verbs."""
        edge = self._table.attach_edge()
        self._edges[edge] = outlet
        return edge

    def half_close_edge(self, edge: int) -> None:
        """The edge sends nothing more: its outlet closes after the last of its sessions."""
        self._half_closed.add(edge)
        self._close_if_done(edge)

    def detach_edge(self, edge: int, now: float) -> None:
        """An edge stream ended: its sessions are cancelled all the way down."""
        for session in self._table.edge_sessions(edge):
            self._advance(session, Input.EDGE_LOST, now, error=CancelledError("The edge left."))
        self._table.forget_edge(edge)
        self._half_closed.discard(edge)
        del self._edges[edge]

    def attach_replica(self, replica: str, outlet: Outlet[Up]) -> int:
        """A replica's stream is up; its number for the other verbs."""
        return self._dispatch.attach(replica, outlet)

    def detach_replica(self, replica: str, stream: int, now: float) -> None:
        """A replica's stream broke: what has no commit yet goes elsewhere, the rest fails."""
        self._dispatch.detach(replica, stream)
        lost = ReplicaLostError(
            f"Replica {replica} was lost while it served the session: open it again.",
            retry_delay_ms=RETRY_DELAY_MS,
        )
        for session in self._table.detach_stream(stream):
            event = Input.STREAM_LOST_EARLY if session.may_move else Input.STREAM_LOST
            error = _cancelled() if session.state is State.CLOSING else lost
            self._advance(session, event, now, error=error)

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self._is_draining = True

    def close_edges(self) -> None:
        """End every edge stream after what is queued for it."""
        for outlet in self._edges.values():
            outlet.close()

    def expire(self, now: float) -> None:
        """End cancelled sessions whose replica never confirmed."""
        for session in self._table.expire(now):
            self._advance(session, Input.ABORT, now, error=_cancelled())

    # --- frames of an edge ---

    def from_edge(self, edge: int, request: Up, now: float) -> None:
        """Take one frame. Raises MalformedFrameError for one that names no session."""
        frame = request.frame
        number = frame.session
        if not number:
            raise MalformedFrameError("A frame names no session: number sessions from 1.")
        kind = frame.WhichOneof("kind")
        if kind == "open":
            self._open(edge, number, request, now)
            return
        session = self._table.of_edge(edge, number)
        if session is None:
            return  # it ended while the frame was under way
        frame.session = session.relayed
        if kind == "draft":
            self._advance(session, Input.DRAFT, now, up=request)
        elif kind == "cancel":
            self._advance(session, Input.CANCEL, now, up=request, error=_cancelled())
        else:
            error = MalformedFrameError("A frame is neither open, draft nor cancel: send one.")
            self._advance(session, Input.ABORT, now, error=error)

    def _open(self, edge: int, number: int, request: Up, now: float) -> None:
        try:
            session = self._admit(edge, number, request, now)
        except DuplicateSessionError as error:
            # The edge takes an error as the end of the session of that number, so it has to be.
            first = self._table.of_edge(edge, number)
            assert first is not None, "a duplicate has a first"
            self._advance(first, Input.ABORT, now, error=error)
            return
        except OutriderError as error:
            self._answer(edge, number, error)
            return
        opening = request.frame.open
        self._journal.opened(session.relayed, opening, now)
        request.frame.session = session.relayed
        opening.model = opening.model or self._default_model
        if opening.WhichOneof("prompt") == "messages" and opening.messages.messages:
            self._tokenize(session)
        else:
            self._place(session, now)

    def _admit(self, edge: int, number: int, request: Up, now: float) -> RelayedSession:
        if self._is_draining:
            raise UnavailableError("This router is stopping: use another.", retry_delay_ms=1000)
        return self._table.open(
            edge, number, request, request.ByteSize(), now, assignment.deadline_at(request, now)
        )

    def tokenized(
        self, session: RelayedSession, block: common_pb2.TokenBlock, digest: bytes, now: float
    ) -> None:
        """The messages of a session became ids."""
        if session.state is not State.PLACING or session.open is None:
            return  # it ended meanwhile
        opening = session.open.frame.open
        opening.ids.tail.CopyFrom(block)
        opening.vocabulary_digest = digest
        self._place(session, now)

    def fail(self, session: RelayedSession, error: OutriderError, now: float) -> None:
        """The messages of a session could not become ids."""
        if session.state is State.PLACING:
            self._advance(session, Input.ABORT, now, error=error)

    # --- frames of a replica ---

    def from_replica(self, stream: int, response: Down, now: float) -> None:
        """Take one frame; frames of sessions that ended or moved are dropped."""
        frame = response.frame
        session = self._table.of_stream(stream, frame.session)
        event = _DOWN_INPUTS.get(frame.WhichOneof("kind") or "")
        if session is None or event is None:
            return
        if event is Input.OPENED and not self._table.announce(session):
            return  # it moved before its first commit, which its edge need not know
        frame.session = session.number
        error = None
        if event is Input.ERROR:
            error = wire_errors.from_detail(frame.error)
            if session.may_move and frame.error.grpc_code in _REFUSALS:
                event = Input.REFUSED
        self._advance(session, event, now, down=response, error=error)

    # --- carrying out ---

    def _advance(
        self,
        session: RelayedSession,
        event: Input,
        now: float,
        *,
        up: Up | None = None,
        down: Down | None = None,
        error: OutriderError | None = None,
    ) -> None:
        """Apply one input and do what the table says. `error` is why the session ends or moves."""
        stream = session.stream
        action = self._table.advance(session, event, now)
        if stream is not None and session.stream is None:
            self._dispatch.release(session)
        has_ended = session.state is State.ENDED
        if down is not None and action is Action.SEND_DOWN:
            self._send_down(session, down, now)
        elif up is not None and action in _UPWARD:
            self._send_up(session, up, action)
        elif error is not None:
            self._resolve(session, stream, action, error, now)
        if has_ended:
            self._journal.ended(session.relayed, error, now)
            self._close_if_done(session.edge)

    def _send_down(self, session: RelayedSession, response: Down, now: float) -> None:
        self._journal.frames_down += 1
        is_last = session.state is State.ENDED
        if not self._edges[session.edge].offer(response, last=is_last) and not is_last:
            full = OverloadedError(
                "This stream is not read and its buffer is full: read faster or open less.",
                retry_delay_ms=RETRY_DELAY_MS,
            )
            self._advance(session, Input.ABORT, now, error=full)

    def _send_up(self, session: RelayedSession, request: Up, action: Action) -> None:
        if action is not Action.SEND_UP:
            self._table.keep(session, request, request.ByteSize())
        if action is not Action.KEEP and session.stream is not None:
            self._journal.frames_up += 1
            is_cancel = session.state is State.CLOSING
            if not self._dispatch.send(session.stream, request, last=is_cancel):
                self._journal.drafts_dropped += 1

    def _resolve(
        self,
        session: RelayedSession,
        stream: int | None,
        action: Action,
        error: OutriderError,
        now: float,
    ) -> None:
        """Everything that is not plain forwarding."""
        if action is Action.REPLACE:
            self._place(session, now, error)
        if action in (Action.CANCEL_UP, Action.CANCEL_AND_ANSWER):
            self._dispatch.cancel(stream, session.relayed, error)
        if action in (Action.ANSWER, Action.CANCEL_AND_ANSWER):
            self._answer(session.edge, session.number, error)

    def _place(
        self, session: RelayedSession, now: float, refusal: OutriderError | None = None
    ) -> None:
        try:
            self._dispatch.place(session, now, refusal)
        except OutriderError as error:
            self._advance(session, Input.ABORT, now, error=error)

    def _answer(self, edge: int, number: int, error: OutriderError) -> None:
        detail = wire_errors.to_detail(error)
        frame = inference_pb2.SessionDown(session=number, error=detail)
        self._edges[edge].offer(Down(frame=frame), last=True)

    def _close_if_done(self, edge: int) -> None:
        if edge in self._half_closed and not self._table.edge_sessions(edge):
            self._edges[edge].close()


def _cancelled() -> CancelledError:
    return CancelledError("The session was cancelled.")
