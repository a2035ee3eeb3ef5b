"""The sessions that a router relays: their states, owners and ids. Pure.

One conversation has three ids here. Its edge numbers it on the edge's own stream
(`edge_session_id`); this router numbers it for its whole life (`router_session_id`); and each
replica knows it by a number of its own (`upstream_session_id`), unique for the router's life, so
that a late frame of a session that ended or moved is recognised whatever stream it comes from.
Frames are opaque here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from typing import Final, Generic, TypeVar

from outrider.errors import DuplicateSessionError, OverloadedError
from services.router.relay.poison import LossRecord
from services.router.session_request import SessionRequest

FrameT = TypeVar("FrameT")

RETRY_DELAY_MS: Final = 1000


class SessionState(IntEnum):
    """State of a session in the router."""

    PLACING = 0
    """No replica has it: its messages are being tokenized, or it is between two replicas."""
    QUEUED = auto()
    """It was let in and waits for the first replica with room."""
    OPENING = auto()
    """A replica was sent the open and has not committed anything."""
    STREAMING = auto()
    """Its replica commits tokens."""
    CLOSING = auto()
    """The edge cancelled it and the replica has not yet confirmed."""
    ENDED = auto()


class SessionInput(IntEnum):
    """Events that change a session's state."""

    # From its edge.
    DRAFT = 0
    CANCEL = auto()
    EDGE_LOST = auto()
    # From this router.
    QUEUED = auto()
    PLACED = auto()
    ABORT = auto()
    """It cannot continue: no replica, an edge that does not read or broke the protocol, a replica
    that does not confirm a cancellation."""
    # From its replica.
    OPENED = auto()
    COMMIT = auto()
    DONE = auto()
    ERROR = auto()
    """An error that another replica would give too, or no other may be tried."""
    LEFT = auto()
    """Its replica cannot continue it, refused it, is silent or lost: another one has to take it."""
    LOST = auto()
    """Its replica is lost and no other one may take it."""


class SessionAction(IntEnum):
    """The switch's response to an input."""

    DROP = 0
    KEEP = auto()
    """Keep the draft for the replica that is yet to be found."""
    KEEP_AND_SEND_UP = auto()
    """Send it, and keep it in case another replica takes over."""
    SEND_UP = auto()
    SEND_DOWN = auto()
    OPEN_UP = auto()
    """Send the open and the kept drafts to the replica."""
    CANCEL_UP = auto()
    """Tell the replica to cancel; the edge is gone and needs no answer."""
    CANCEL_AND_ANSWER = auto()
    """Tell the replica to cancel, and the edge why."""
    ANSWER = auto()
    """End the session towards the edge with an error of this router."""
    MOVE = auto()
    """Find another replica, which continues after the committed tokens."""


_PLACING, _QUEUED, _OPENING = SessionState.PLACING, SessionState.QUEUED, SessionState.OPENING
_STREAMING, _CLOSING, _ENDED = SessionState.STREAMING, SessionState.CLOSING, SessionState.ENDED

TRANSITIONS: Final[dict[SessionState, dict[SessionInput, tuple[SessionState, SessionAction]]]] = {
    _PLACING: {
        SessionInput.DRAFT: (_PLACING, SessionAction.KEEP),
        SessionInput.CANCEL: (_ENDED, SessionAction.ANSWER),
        SessionInput.EDGE_LOST: (_ENDED, SessionAction.DROP),
        SessionInput.QUEUED: (_QUEUED, SessionAction.DROP),
        SessionInput.PLACED: (_OPENING, SessionAction.OPEN_UP),
        SessionInput.ABORT: (_ENDED, SessionAction.ANSWER),
    },
    _QUEUED: {
        SessionInput.DRAFT: (_QUEUED, SessionAction.KEEP),
        SessionInput.CANCEL: (_ENDED, SessionAction.ANSWER),
        SessionInput.EDGE_LOST: (_ENDED, SessionAction.DROP),
        SessionInput.PLACED: (_OPENING, SessionAction.OPEN_UP),
        SessionInput.ABORT: (_ENDED, SessionAction.ANSWER),
    },
    _OPENING: {
        SessionInput.DRAFT: (_OPENING, SessionAction.KEEP_AND_SEND_UP),
        SessionInput.CANCEL: (_CLOSING, SessionAction.SEND_UP),
        SessionInput.EDGE_LOST: (_ENDED, SessionAction.CANCEL_UP),
        SessionInput.ABORT: (_ENDED, SessionAction.CANCEL_AND_ANSWER),
        SessionInput.OPENED: (_OPENING, SessionAction.SEND_DOWN),
        SessionInput.COMMIT: (_STREAMING, SessionAction.SEND_DOWN),
        SessionInput.DONE: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.ERROR: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.LEFT: (_PLACING, SessionAction.MOVE),
        SessionInput.LOST: (_ENDED, SessionAction.ANSWER),
    },
    _STREAMING: {
        SessionInput.DRAFT: (_STREAMING, SessionAction.SEND_UP),
        SessionInput.CANCEL: (_CLOSING, SessionAction.SEND_UP),
        SessionInput.EDGE_LOST: (_ENDED, SessionAction.CANCEL_UP),
        SessionInput.ABORT: (_ENDED, SessionAction.CANCEL_AND_ANSWER),
        SessionInput.OPENED: (_STREAMING, SessionAction.SEND_DOWN),
        SessionInput.COMMIT: (_STREAMING, SessionAction.SEND_DOWN),
        SessionInput.DONE: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.ERROR: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.LEFT: (_PLACING, SessionAction.MOVE),
        SessionInput.LOST: (_ENDED, SessionAction.ANSWER),
    },
    _CLOSING: {
        SessionInput.DRAFT: (_CLOSING, SessionAction.DROP),
        SessionInput.CANCEL: (_CLOSING, SessionAction.DROP),
        SessionInput.EDGE_LOST: (_ENDED, SessionAction.DROP),
        SessionInput.ABORT: (_ENDED, SessionAction.ANSWER),
        SessionInput.OPENED: (_CLOSING, SessionAction.SEND_DOWN),
        SessionInput.COMMIT: (_CLOSING, SessionAction.SEND_DOWN),
        SessionInput.DONE: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.ERROR: (_ENDED, SessionAction.SEND_DOWN),
        SessionInput.LOST: (_ENDED, SessionAction.ANSWER),
    },
    _ENDED: {},
}
"""Next state and action by state and input. Pairs left out cannot happen, because the session table
drops late frames (a replica is found by its own stream's number only while it has the session);
meeting one is a KeyError, a defect."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of the session table."""

    max_sessions: int
    max_sessions_per_edge: int
    max_early_frames: int
    """Drafts kept per session while its replica has not committed anything."""
    max_kept_bytes: int
    """Bytes of opens, drafts and committed tokens kept over all sessions."""
    cancel_timeout_s: float
    """A cancelled session whose replica does not confirm within this time is ended."""


@dataclass(slots=True, eq=False)
class Replay(Generic[FrameT]):
    """Frames to send to a session's next replica."""

    open_frame: FrameT
    """The open as the edge sent it."""
    num_bytes: int
    """All that is kept here."""
    drafts: list[FrameT] = field(default_factory=list)
    """Drafts for a replica that has not committed anything yet, in order."""
    draft_bytes: int = 0
    """The part of `num_bytes` that the drafts are."""
    committed: bytearray = field(default_factory=bytearray)
    """The tokens that this router relayed, as the shell wrote them."""


@dataclass(slots=True, eq=False)
class Session(Generic[FrameT]):
    """One relayed session. Its state is changed by the table alone."""

    edge_stream: int
    """The table's number of the edge stream that it came on."""
    edge_session_id: int
    """The edge's id for it, unique on that stream."""
    router_session_id: int
    """This router's id for it."""
    upstream_session_id: int
    """Its id on its replica's stream, or on the next one's."""
    opened_at: float
    replay: Replay[FrameT] | None
    """Frames for another replica; None: it cannot be opened again."""
    request: SessionRequest
    """The request as it came, with the class that it was given since."""
    state: SessionState = SessionState.PLACING
    replica_stream: int | None = None
    """Number, in the table, of its replica's stream."""
    is_announced: bool = False
    """Whether its edge was sent the opening."""
    tried_replicas: list[str] = field(default_factory=list)
    """Replicas it was sent to since it last committed, the present one last."""
    num_committed: int = 0
    """Committed tokens of the reply."""
    model_identity: bytes = b""
    """Identity of the model that computed its committed tokens: reported by the last replica that
    committed, or by its edge; empty: unknown, or no tokens."""
    opened_identity: bytes = b""
    """Model identity that its present replica reported when it opened the session; empty: not
    opened yet, or not reported."""
    committed_as: int = 0
    """Its `upstream_session_id` when it last committed: another one now means another replica."""
    losses: LossRecord = field(default_factory=LossRecord)
    heard_at: float = 0.0
    """When its replica last sent a frame of it."""
    first_token_at: float | None = None
    prompt_ms: float = 0.0
    """Milliseconds in which its idle replica would compute the uncached part of its prompt; 0: not
    placed yet."""
    replica_left_at: float | None = None
    """Time since which it has had no token for want of a replica."""
    left_replica: str = ""
    """The replica that it had before that time; "" before the first."""
    left_because: str = ""
    """Why it left, as the `reason` of an error."""
    num_moves: int = 0
    standby: str = ""
    """The replica that was last asked to copy its KV; "": none was."""
    standby_tokens: int = 0
    """Tokens of prompt and reply when it was."""
    standby_at: float = 0.0
    """When a standby was last looked for."""
    epoch: int = 0
    """The newest draft epoch of its edge."""
    void_epoch: int = -1
    """Drafts of this epoch and of those before it are not sent on."""

    @property
    def replica(self) -> str:
        """The replica that has it, or had it last; "" before the first."""
        return self.tried_replicas[-1] if self.tried_replicas else ""

    @property
    def current_request(self) -> SessionRequest:
        """The request to its next replica: continue after all tokens committed by now."""
        if not self.num_committed:
            return self.request
        return replace(self.request, num_committed=self.num_committed, identity=self.model_identity)

    @property
    def is_under_way(self) -> bool:
        """Whether it has tokens, or was lost with a replica."""
        return bool(self.num_committed or self.losses.num_lost or self.num_moves)

    @property
    def open_frame(self) -> FrameT:
        """The open of a session that is being placed."""
        assert self.replay is not None, "a session that is placed has its open"
        return self.replay.open_frame


class SessionTable(Generic[FrameT]):
    """Every live session, found from either side. `advance` alone changes a session's state."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._edges: dict[int, dict[int, Session[FrameT]]] = {}
        self._streams: dict[int, dict[int, Session[FrameT]]] = {}
        self._closing: deque[tuple[float, Session[FrameT]]] = deque()
        # Those that have tokens and could move, in the order of their first ones.
        self._movable: dict[int, Session[FrameT]] = {}
        self._next_id = 1
        self._num_sessions = 0
        self._num_by_model: Counter[str] = Counter()
        """Live sessions of models that have any."""
        self._kept_bytes = 0

    def __len__(self) -> int:
        return self._num_sessions

    def num_sessions(self, model: str) -> int:
        """Live sessions of one model."""
        return self._num_by_model[model]

    def with_requests(self, requests: Collection[int]) -> list[Session[FrameT]]:
        """Those of these keys (`LossRecord.request`)."""
        return [
            session
            for sessions in self._edges.values()
            for session in sessions.values()
            if session.losses.request in requests
        ]

    def attach_edge(self) -> int:
        """A new edge stream."""
        edge_stream = self._take_id()
        self._edges[edge_stream] = {}
        return edge_stream

    def attach_replica(self) -> int:
        """A new replica stream; a reconnected replica has another one."""
        replica_stream = self._take_id()
        self._streams[replica_stream] = {}
        return replica_stream

    def open(
        self,
        edge_stream: int,
        edge_session_id: int,
        request: SessionRequest,
        frame: FrameT,
        num_bytes: int,
        now: float,
    ) -> Session[FrameT]:
        """A new session in state PLACING. Raises DuplicateSessionError, OverloadedError."""
        sessions = self._edges[edge_stream]
        if edge_session_id in sessions:
            raise DuplicateSessionError(
                f"session {edge_session_id} is already open on this stream; number every session "
                "once"
            )
        if self._num_sessions >= self._limits.max_sessions:
            raise _overloaded(f"This router relays {self._num_sessions} sessions")
        if len(sessions) >= self._limits.max_sessions_per_edge:
            raise _overloaded(f"This stream carries {len(sessions)} sessions")
        if not self._make_room(num_bytes):
            raise _overloaded(f"{self._kept_bytes} bytes of prompts wait for a first token")
        router_session_id = self._take_id()
        session = Session(
            edge_stream=edge_stream,
            edge_session_id=edge_session_id,
            router_session_id=router_session_id,
            upstream_session_id=router_session_id,
            opened_at=now,
            replay=Replay(frame, num_bytes),
            request=request,
            num_committed=request.num_committed,
            model_identity=request.identity or b"",
            losses=LossRecord(request.call_key),
        )
        self._kept_bytes += num_bytes
        self._num_sessions += 1
        self._num_by_model[request.model] += 1
        sessions[edge_session_id] = session
        return session

    def _make_room(self, num_bytes: int) -> bool:
        """At the expense of sessions that have tokens, the oldest first: they could not move any
        more, and their edges would have to open them again."""
        while self._kept_bytes + num_bytes > self._limits.max_kept_bytes:
            if not self._movable:
                return False
            self._release_replay(next(iter(self._movable.values())))
        return True

    def resized(self, session: Session[FrameT], num_bytes: int) -> None:
        """The open of a session that is being placed now has `num_bytes` bytes. Raises
        OverloadedError."""
        replay = session.replay
        assert replay is not None, "a session that is placed has its open"
        grown = num_bytes + replay.draft_bytes + len(replay.committed) - replay.num_bytes
        if not self._make_room(grown):
            raise _overloaded(f"{self._kept_bytes} bytes of prompts wait for a first token")
        self._grow(replay, grown)

    def of_edge(self, edge_stream: int, edge_session_id: int) -> Session[FrameT] | None:
        """The live session an edge means; None if it ended."""
        return self._edges[edge_stream].get(edge_session_id)

    def on_stream(self, replica_stream: int) -> Mapping[int, Session[FrameT]]:
        """The live sessions of a replica's stream by the numbers that it knows them by: one that
        ended or moved is not among them any more."""
        return self._streams.get(replica_stream, {})

    def bind(
        self, session: Session[FrameT], replica_stream: int, replica: str, now: float
    ) -> SessionAction:
        """A replica is to have it."""
        action = self.advance(session, SessionInput.PLACED, now)
        session.replica_stream = replica_stream
        session.tried_replicas.append(replica)
        self._streams[replica_stream][session.upstream_session_id] = session
        return action

    def announce(self, session: Session[FrameT]) -> bool:
        """A replica opened it. Returns whether its edge has still to be informed, which happens
        once."""
        is_news = not session.is_announced
        session.is_announced = True
        return is_news

    def keep_draft(self, session: Session[FrameT], frame: FrameT, num_bytes: int) -> bool:
        """Keep a draft for a replay, if the bounds allow it; a lost draft costs only its speed."""
        replay = session.replay
        if replay is None or len(replay.drafts) >= self._limits.max_early_frames:
            return False
        if self._kept_bytes + num_bytes > self._limits.max_kept_bytes:
            return False
        replay.drafts.append(frame)
        replay.draft_bytes += num_bytes
        self._grow(replay, num_bytes)
        return True

    def begin_epoch(self, session: Session[FrameT], epoch: int) -> None:
        """Its edge drafts in this epoch now: kept drafts of older epochs are dropped, to leave
        their room to new ones."""
        if epoch > session.epoch:
            session.epoch = epoch
            self._release_drafts(session)

    def drop_drafts(self, session: Session[FrameT]) -> None:
        """Drop the drafts that the edge has sent so far."""
        self._release_drafts(session)
        session.void_epoch = session.epoch

    def commit(self, session: Session[FrameT], num_committed: int, tokens: bytes | None) -> None:
        """Tokens became final: the reply has `num_committed` now. `tokens` are kept as they are; if
        they are unknown (None), or there is no room, the session cannot move any more."""
        session.num_committed = num_committed
        if len(session.tried_replicas) > 1:
            session.tried_replicas[:-1] = []
        if session.replay is None:
            return
        if tokens is None or not self._make_room(len(tokens)):
            self._release_replay(session)
            return
        replay = session.replay
        if replay is not None:  # it might have been the oldest
            num_bytes = len(tokens)
            replay.committed += tokens
            replay.num_bytes += num_bytes
            self._kept_bytes += num_bytes

    def advance(self, session: Session[FrameT], event: SessionInput, now: float) -> SessionAction:
        """Apply one input to a session; the caller carries out the action."""
        before = session.state
        session.state, action = TRANSITIONS[before][event]
        if session.state is not before:
            self._enter(session, now)
        return action

    def edge_sessions(self, edge_stream: int) -> list[Session[FrameT]]:
        """The live sessions of an edge."""
        return list(self._edges[edge_stream].values())

    def detach_edge(self, edge_stream: int) -> None:
        """An edge stream is over, and all of its sessions have ended."""
        assert not self._edges[edge_stream], "an edge is detached after its sessions"
        del self._edges[edge_stream]

    def detach_replica(self, replica_stream: int) -> list[Session[FrameT]]:
        """A replica stream broke: its sessions, for the caller to advance."""
        return list(self._streams.pop(replica_stream, {}).values())

    def replica_sessions(self, replica_stream: int) -> list[Session[FrameT]]:
        """The live sessions on a replica's stream."""
        return list(self._streams[replica_stream].values())

    def expire(self, now: float) -> list[Session[FrameT]]:
        """Cancelled sessions whose replica kept silent, for the caller to advance with ABORT."""
        late = []
        while self._closing and self._closing[0][0] <= now:
            late.append(self._closing.popleft()[1])
        return [session for session in late if session.state is SessionState.CLOSING]

    def check_invariants(self) -> None:
        """Assert that the indexes and the counts agree."""
        live = list(self._live())
        assert len(live) == self._num_sessions
        assert Counter(session.request.model for session in live) == self._num_by_model
        assert sum(it.replay.num_bytes for it in live if it.replay) == self._kept_bytes
        for session in live:
            assert session.state is not SessionState.ENDED
            is_unbound = session.state in (SessionState.PLACING, SessionState.QUEUED)
            assert (session.replica_stream is None) == is_unbound
        assert all(session.replay is not None for session in self._movable.values())
        bound = {
            session.router_session_id
            for sessions in self._streams.values()
            for session in sessions.values()
        }
        assert bound <= {it.router_session_id for it in live if it.replica_stream is not None}

    def _enter(self, session: Session[FrameT], now: float) -> None:
        """Book a change of state."""
        if session.state is SessionState.PLACING:
            self._unbind(session)
            self._movable.pop(session.router_session_id, None)
        elif session.state is SessionState.STREAMING:
            self._release_drafts(session)
            if session.replay is not None:
                self._movable[session.router_session_id] = session
        elif session.state is SessionState.CLOSING:
            self._release_replay(session)
            self._closing.append((now + self._limits.cancel_timeout_s, session))
        elif session.state is SessionState.ENDED:
            self._unbind(session)
            self._release_replay(session)
            del self._edges[session.edge_stream][session.edge_session_id]
            self._num_sessions -= 1
            model = session.request.model
            self._num_by_model[model] -= 1
            if not self._num_by_model[model]:
                del self._num_by_model[model]

    def _unbind(self, session: Session[FrameT]) -> None:
        if session.replica_stream is not None:
            on_stream = self._streams.get(session.replica_stream, {})
            on_stream.pop(session.upstream_session_id, None)
            session.replica_stream = None
            session.opened_identity = b""
            session.upstream_session_id = self._take_id()

    def _grow(self, replay: Replay[FrameT], num_bytes: int) -> None:
        replay.num_bytes += num_bytes
        self._kept_bytes += num_bytes

    def _release_drafts(self, session: Session[FrameT]) -> None:
        replay = session.replay
        if replay is not None:
            self._grow(replay, -replay.draft_bytes)
            replay.drafts = []
            replay.draft_bytes = 0

    def _release_replay(self, session: Session[FrameT]) -> None:
        if session.replay is not None:
            self._kept_bytes -= session.replay.num_bytes
            session.replay = None
        self._movable.pop(session.router_session_id, None)

    def _live(self) -> Iterator[Session[FrameT]]:
        for sessions in self._edges.values():
            yield from sessions.values()

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _overloaded(found: str) -> OverloadedError:
    return OverloadedError(
        f"{found}, which is the limit; try again later", retry_delay_ms=RETRY_DELAY_MS
    )
