"""Moves session frames between edges and replicas, as the session table says. No I/O, no clock.

Frames are renumbered in place and forwarded as they are: RouteRequest and GenerateRequest (and
their responses) are one and the same on the wire, so no token block is ever copied or re-encoded.
Nothing here waits: a full outbox loses drafts, which are guesses, moves opens elsewhere, and ends
the sessions of an edge that does not read; it never holds up another edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from outrider.errors import DuplicateSessionError, MalformedFrameError, OutriderError
from outrider.v1 import common_pb2, router_pb2
from services.router.relay.assignment import cancelled
from services.router.relay.dispatch import Dispatch
from services.router.relay.edges import Edges, unread
from services.router.relay.entry.entry import Entry
from services.router.relay.journal import Journal
from services.router.relay.lifecycle import Action, Input, State
from services.router.relay.sessions import Session, SessionTable
from services.router.relay.survival.moves import Moves
from services.router.relay.survival.watch import Leaving, Watch

if TYPE_CHECKING:
    from outrider.rpc import Outbox

Up: TypeAlias = router_pb2.RouteRequest
Down: TypeAlias = router_pb2.RouteResponse
RelayedSession: TypeAlias = Session[Up]

_UPWARD = frozenset({Action.KEEP, Action.KEEP_AND_SEND_UP, Action.SEND_UP})


class Switch:
    """All relayed sessions of one router. Verbs are called by the shells with data and `now`."""

    def __init__(
        self,
        table: SessionTable[Up],
        dispatch: Dispatch,
        journal: Journal,
        entry: Entry,
        watch: Watch,
        moves: Moves,
        *,
        default_model: str,
        tokenize: Callable[[RelayedSession], None],
        hurry: Callable[[], None],
    ) -> None:
        """`tokenize` is asked for sessions that bring messages; `tokenized` or `fail` answers.
        `hurry` asks for `go_on` as soon as all else has had its turn."""
        self._table = table
        self._dispatch = dispatch
        self._journal = journal
        self._entry = entry
        self._watch = watch
        self._moves = moves
        self._hurry = hurry
        self._default_model = default_model
        self._tokenize = tokenize
        self._edges = Edges()

    # --- the two sides come and go ---

    def attach_edge(self, outbox: Outbox[Down]) -> int:
        """A new edge stream; its number for the other verbs."""
        edge = self._table.attach_edge()
        self._edges.attach(edge, outbox)
        return edge

    def half_close_edge(self, edge: int) -> None:
        """The edge sends nothing more: its outbox closes after the last of its sessions."""
        self._edges.half_close(edge)
        self._settle(edge)

    def detach_edge(self, edge: int, now: float) -> None:
        """An edge stream ended: its sessions are cancelled all the way down."""
        for session in self._table.edge_sessions(edge):
            self._advance(session, Input.EDGE_LOST, now, error=cancelled("The edge left."))
        self._table.forget_edge(edge)
        self._edges.detach(edge)

    def attach_replica(self, replica: str, outbox: Outbox[Up]) -> int:
        """A replica's stream is up; its number for the other verbs."""
        if len(self._moves) or self._entry.num_waiting:
            self._hurry()
        return self._dispatch.attach(replica, outbox)

    def detach_replica(
        self, replica: str, stream: int, now: float, *, is_own: bool = False
    ) -> None:
        """A replica's stream broke, maybe by this router's own fault (`is_own`): its sessions go
        elsewhere."""
        self._dispatch.detach(replica, stream)
        self._entry.survey(now)
        self._leave(self._watch.detached(replica, stream, now, is_own=is_own), now)

    def reported(self, now: float) -> None:
        """A replica told its load: there may be room for those who wait."""
        if self._entry.is_due(now):
            self._hurry()

    def drain(self) -> None:
        """Take no new sessions from now on."""
        self._entry.drain()

    def close_edges(self) -> None:
        """End every edge stream after what is queued for it."""
        self._edges.close()

    def expire(self, now: float) -> None:
        """What passes with time alone, ten times a second: cancelled sessions whose replica never
        confirmed end, those that waited too long, those of replicas that hang leave."""
        self._end(((session, cancelled()) for session in self._table.expire(now)), now)
        self._leave(self._watch.silent(now), now)
        self._end(self._entry.expire(now), now)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Sessions that wait for a replica try again, those that lost theirs first."""
        self._retry(now)
        self._end(self._entry.wake(now), now)

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
        frame.session = session.leg
        if kind == "draft":
            self._table.begin_epoch(session, frame.draft.epoch)
            if frame.draft.epoch > session.lost_epoch:
                self._advance(session, Input.DRAFT, now, up=request)
        elif kind == "cancel":
            self._advance(session, Input.CANCEL, now, up=request, error=cancelled())
        else:
            error = MalformedFrameError("A frame is neither open, draft nor cancel: send one.")
            self._advance(session, Input.ABORT, now, error=error)

    def _open(self, edge: int, number: int, request: Up, now: float) -> None:
        try:
            session = self._entry.admit(edge, number, request, now)
        except DuplicateSessionError as error:
            # The edge takes an error as the end of the session of that number, so it has to be.
            first = self._table.of_edge(edge, number)
            assert first is not None, "a duplicate has a first"
            self._advance(first, Input.ABORT, now, error=error)
            return
        except OutriderError as error:
            self._journal.refused(error)
            self._edges.answer(edge, number, error)
            return
        if older := self._entry.runs.began(session):
            gone = cancelled("The chat goes on elsewhere.")
            self._advance(older, Input.ABORT, now, error=gone)
        opening = request.frame.open
        self._journal.opened(session.relayed, opening, now)
        opening.model = opening.model or self._default_model
        opening.echo_accepted = True  # to know what is committed
        if opening.WhichOneof("prompt") == "messages" and opening.messages.messages:
            self._tokenize(session)
        else:
            self._end(self._entry.place(session, now), now)

    def tokenized(
        self, session: RelayedSession, block: common_pb2.TokenBlock, digest: bytes, now: float
    ) -> None:
        """The messages of a session became ids."""
        if session.state is not State.PLACING or session.open is None:
            return  # it ended meanwhile
        opening = session.open.frame.open
        opening.ids.tail.CopyFrom(block)
        opening.vocabulary_digest = digest
        self._end(self._entry.place(session, now), now)

    def fail(self, session: RelayedSession, error: OutriderError, now: float) -> None:
        """The messages of a session could not become ids."""
        if session.state is State.PLACING:
            self._advance(session, Input.ABORT, now, error=error)

    # --- frames of a replica ---

    def from_replica(self, stream: int, response: Down, now: float) -> None:
        """Take one frame; frames of sessions that ended or moved are dropped."""
        session = self._table.of_stream(stream, response.frame.session)
        began_at = session.began_at if session else None
        said = self._watch.read(stream, session, response, now) if session else None
        if session is None or said is None:
            return
        if session.began_at != began_at:
            self._entry.began(session, now)
        self._advance(session, said.event, now, down=said.response, error=said.error)
        if said.error is not None:
            self._retry(now)
        elif self._moves.is_due:
            self._hurry()

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
        stream, leg = session.stream, session.leg
        action = self._table.advance(session, event, now)
        if stream is not None and session.stream is None:
            self._dispatch.release(session)
        has_ended = session.state is State.ENDED
        if down is not None and action is Action.SEND_DOWN:
            self._send_down(session, down, now)
        elif up is not None and action in _UPWARD:
            self._send_up(session, up, action)
        elif error is not None:
            self._resolve(session, (stream, leg), action, error, now)
        if has_ended:
            self._ended(session, error, now)

    def _ended(self, session: RelayedSession, error: OutriderError | None, now: float) -> None:
        self._moves.forget(session)
        self._entry.left(session, now)
        self._journal.ended(session.relayed, error, now)
        self._settle(session.edge)
        if self._entry.num_waiting:
            self._hurry()

    def _send_down(self, session: RelayedSession, response: Down, now: float) -> None:
        self._journal.frames_down += 1
        is_last = session.state is State.ENDED
        if not self._edges.send(session.edge, response, last=is_last) and not is_last:
            self._advance(session, Input.ABORT, now, error=unread())

    def _send_up(self, session: RelayedSession, request: Up, action: Action) -> None:
        if action is not Action.SEND_UP:
            self._table.keep(session, request, request.ByteSize())
        if action is not Action.KEEP and session.stream is not None:
            self._journal.frames_up += 1
            is_last = session.state is State.CLOSING
            if not self._dispatch.send(session.stream, request, last=is_last):
                self._journal.drafts_dropped += 1

    def _resolve(
        self,
        session: RelayedSession,
        was_at: tuple[int | None, int],
        action: Action,
        error: OutriderError,
        now: float,
    ) -> None:
        """Everything that is not plain forwarding."""
        if action is Action.MOVE:
            self._move(session, error, now)
        if action in (Action.CANCEL_UP, Action.CANCEL_AND_ANSWER):
            self._dispatch.cancel(*was_at, error)
        if action in (Action.ANSWER, Action.CANCEL_AND_ANSWER):
            self._edges.answer(session.edge, session.number, error)

    def _move(self, session: RelayedSession, error: OutriderError, now: float) -> None:
        if session.is_announced:
            self._table.drop_drafts(session)
        if session.is_under_way:
            self._moves.wait(session, error, now)
        else:
            self._place(session, now, error)

    def _place(self, session: RelayedSession, now: float, why: OutriderError | None = None) -> None:
        try:
            self._dispatch.place(session, now, why)
        except OutriderError as error:
            self._advance(session, Input.ABORT, now, error=error)

    def _leave(self, leavings: Iterable[Leaving], now: float) -> None:
        for session, event, error in leavings:
            self._advance(session, event, now, error=error)
        self._retry(now)

    def _retry(self, now: float) -> None:
        self._end(self._moves.retry(now), now)
        if self._moves.is_due:
            self._hurry()

    def _end(self, endings: Iterable[tuple[RelayedSession, OutriderError]], now: float) -> None:
        for session, error in endings:
            self._advance(session, Input.ABORT, now, error=error)

    def _settle(self, edge: int) -> None:
        if self._edges.is_half_closed(edge) and not self._table.edge_sessions(edge):
            self._edges.end(edge)
