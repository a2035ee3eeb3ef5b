"""The sessions a router relays: whose they are, what they are called on either side. Pure.

An edge numbers its sessions on its own stream, a replica stream carries those of many edges: the
table gives every session one `relayed` number, unique for the router's life, so a late frame of
a session that ended or moved is recognised whatever stream it comes from. Frames are opaque here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from outrider.errors import DuplicateSessionError, OverloadedError
from services.router.relay.lifecycle import TRANSITIONS, Action, Input, State
from services.router.relay.survival.suspicion import Record

FrameT = TypeVar("FrameT")

RETRY_DELAY_MS = 1000


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Bounds of the table."""

    max_sessions: int
    max_sessions_per_edge: int
    max_early_frames: int
    """Drafts kept per session while its replica has not committed anything."""
    max_kept_bytes: int
    """Bytes of opens, drafts and committed tokens kept over all sessions."""
    cancel_timeout_s: float


@dataclass(slots=True, eq=False)
class Session(Generic[FrameT]):
    """One relayed session. Changed by the table alone."""

    edge: int
    number: int
    """What its edge calls it."""
    relayed: int
    """What it is called in this router."""
    leg: int
    """What it is called on its replica's stream, or will be on the next one."""
    opened_at: float
    open: FrameT | None
    """The open as the edge sent it; None where it cannot be sent again."""
    kept_bytes: int
    deadline_at: float | None = None
    kept: list[FrameT] = field(default_factory=list)
    """Drafts for a replica that has not committed anything yet, in order."""
    draft_bytes: int = 0
    state: State = State.PLACING
    stream: int | None = None
    """The replica stream that has it."""
    is_announced: bool = False
    """Whether its edge was told that it is opened."""
    tried: list[str] = field(default_factory=list)
    """Replicas it was sent to since it last committed, the present one last."""
    upto: int = 0
    """Committed tokens of the reply."""
    committed: bytearray = field(default_factory=bytearray)
    """Those of them that this router relayed, as the shell wrote them."""
    record: Record = field(default_factory=Record)
    heard_at: float = 0.0
    """When its replica last said anything of it."""
    began_at: float | None = None
    """When its first token came."""
    left_at: float | None = None
    """Since when it has had no token for want of a replica."""
    num_moves: int = 0
    epoch: int = 0
    """The newest one that its edge sent drafts of."""
    lost_epoch: int = -1
    """Drafts of it, and of those before it, are not sent on."""

    @property
    def replica(self) -> str:
        """The replica that has it, or had it last; "" before the first."""
        return self.tried[-1] if self.tried else ""

    @property
    def is_under_way(self) -> bool:
        """Whether it has tokens, or was lost with a replica."""
        return bool(self.upto or self.record.num_lost or self.num_moves)


class SessionTable(Generic[FrameT]):
    """Every live session, found from either side. `advance` alone changes a session's state."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._edges: dict[int, dict[int, Session[FrameT]]] = {}
        self._streams: dict[int, dict[int, Session[FrameT]]] = {}
        self._closing: deque[tuple[float, Session[FrameT]]] = deque()
        # Those that have tokens and could move, in the order of their first ones.
        self._movable: dict[int, Session[FrameT]] = {}
        self._next = 1
        self._num_sessions = 0
        self._kept_bytes = 0

    def __len__(self) -> int:
        return self._num_sessions

    def attach_edge(self) -> int:
        """A new edge stream."""
        edge = self._take_number()
        self._edges[edge] = {}
        return edge

    def attach_stream(self) -> int:
        """A new replica stream; a reconnected replica has another one."""
        stream = self._take_number()
        self._streams[stream] = {}
        return stream

    def open(
        self,
        edge: int,
        number: int,
        frame: FrameT,
        num_bytes: int,
        now: float,
        deadline_at: float | None = None,
    ) -> Session[FrameT]:
        """A new session in state PLACING. Raises DuplicateSessionError, OverloadedError."""
        sessions = self._edges[edge]
        if number in sessions:
            raise DuplicateSessionError(
                f"Session {number} is already open on this stream: number every session once."
            )
        self._check_room(len(sessions))
        if not self._make_room(num_bytes):
            raise _overloaded(f"{self._kept_bytes} bytes of prompts wait for a first token")
        own = self._take_number()
        session = Session(edge, number, own, own, now, frame, num_bytes, deadline_at)
        self._kept_bytes += num_bytes
        self._num_sessions += 1
        sessions[number] = session
        return session

    def _check_room(self, num_of_edge: int) -> None:
        if self._num_sessions >= self._limits.max_sessions:
            raise _overloaded(f"This router relays {self._num_sessions} sessions")
        if num_of_edge >= self._limits.max_sessions_per_edge:
            raise _overloaded(f"This stream carries {num_of_edge} sessions")

    def _make_room(self, num_bytes: int) -> bool:
        """At the expense of sessions that have tokens, the oldest first: they could not move any
        more, and their edges would have to open them again."""
        while self._kept_bytes + num_bytes > self._limits.max_kept_bytes:
            if not self._movable:
                return False
            self._release_kept(next(iter(self._movable.values())))
        return True

    def of_edge(self, edge: int, number: int) -> Session[FrameT] | None:
        """The live session an edge means; None if it ended."""
        return self._edges[edge].get(number)

    def of_stream(self, stream: int, leg: int) -> Session[FrameT] | None:
        """The live session a replica means; None if it ended, moved, or is not the replica's."""
        return self._streams.get(stream, {}).get(leg)

    def bind(self, session: Session[FrameT], stream: int, replica: str, now: float) -> Action:
        """A replica is to have it."""
        action = self.advance(session, Input.PLACED, now)
        session.stream = stream
        session.tried.append(replica)
        self._streams[stream][session.leg] = session
        return action

    def announce(self, session: Session[FrameT]) -> bool:
        """A replica opened it; whether that is news to its edge, which is told once."""
        is_news = not session.is_announced
        session.is_announced = True
        return is_news

    def keep(self, session: Session[FrameT], frame: FrameT, num_bytes: int) -> bool:
        """Keep a draft for a replay, if the bounds allow it; a lost draft costs only its speed."""
        has_room = self._kept_bytes + num_bytes <= self._limits.max_kept_bytes
        if allowed := has_room and len(session.kept) < self._limits.max_early_frames:
            session.kept.append(frame)
            session.draft_bytes += num_bytes
            self._grow(session, num_bytes)
        return allowed

    def begin_epoch(self, session: Session[FrameT], epoch: int) -> None:
        """Its edge drafts in this epoch: what is kept of older ones is void, and must not take the
        room of what is not."""
        if epoch > session.epoch:
            session.epoch = epoch
            self._release_drafts(session)

    def drop_drafts(self, session: Session[FrameT]) -> None:
        """What the edge has guessed so far is void."""
        self._release_drafts(session)
        session.lost_epoch = session.epoch

    def committed(self, session: Session[FrameT], upto: int, tokens: bytes | None) -> None:
        """Tokens became final, up to number `upto`. `tokens` are kept as they are; where they are
        not known (None), or there is no room, it cannot move any more."""
        session.upto = upto
        session.tried[:-1] = []
        if session.open is None:
            return
        if tokens is None or not self._make_room(len(tokens)):
            self._release_kept(session)
        elif session.open is not None:  # it might have been the oldest
            session.committed += tokens
            self._grow(session, len(tokens))

    def advance(self, session: Session[FrameT], event: Input, now: float) -> Action:
        """Apply one input to a session; the caller carries out the action."""
        before = session.state
        session.state, action = TRANSITIONS[before][event]
        if session.state is not before:
            self._enter(session, now)
        return action

    def edge_sessions(self, edge: int) -> list[Session[FrameT]]:
        """The live sessions of an edge."""
        return list(self._edges[edge].values())

    def forget_edge(self, edge: int) -> None:
        """Close the books of an edge whose sessions have all ended."""
        assert not self._edges[edge], "an edge is forgotten after its sessions"
        del self._edges[edge]

    def detach_stream(self, stream: int) -> list[Session[FrameT]]:
        """A replica stream broke: its sessions, for the caller to advance."""
        return list(self._streams.pop(stream, {}).values())

    def stream_sessions(self, stream: int) -> list[Session[FrameT]]:
        """The live sessions on a replica's stream."""
        return list(self._streams[stream].values())

    def expire(self, now: float) -> list[Session[FrameT]]:
        """Cancelled sessions whose replica kept silent, for the caller to advance with ABORT."""
        late = []
        while self._closing and self._closing[0][0] <= now:
            late.append(self._closing.popleft()[1])
        return [session for session in late if session.state is State.CLOSING]

    def check_invariants(self) -> None:
        """Assert that the indexes and the counts agree."""
        live = list(self._live())
        assert len(live) == self._num_sessions
        assert sum(session.kept_bytes for session in live) == self._kept_bytes
        for session in live:
            assert session.state is not State.ENDED
            assert (session.stream is None) == (session.state in (State.PLACING, State.QUEUED))
        assert all(s.open is not None for s in self._movable.values())
        bound = [s for sessions in self._streams.values() for s in sessions.values()]
        assert {s.relayed for s in bound} <= {s.relayed for s in live if s.stream is not None}

    def _enter(self, session: Session[FrameT], now: float) -> None:
        """Book a change of state."""
        if session.state is State.PLACING:
            self._unbind(session)
            self._movable.pop(session.relayed, None)
        elif session.state is State.STREAMING:
            self._release_drafts(session)
            if session.open is not None:
                self._movable[session.relayed] = session
        elif session.state is State.CLOSING:
            self._release_kept(session)
            self._closing.append((now + self._limits.cancel_timeout_s, session))
        elif session.state is State.ENDED:
            self._unbind(session)
            self._release_kept(session)
            del self._edges[session.edge][session.number]
            self._num_sessions -= 1

    def _unbind(self, session: Session[FrameT]) -> None:
        if session.stream is not None:
            self._streams.get(session.stream, {}).pop(session.leg, None)
            session.stream, session.leg = None, self._take_number()

    def _grow(self, session: Session[FrameT], num_bytes: int) -> None:
        session.kept_bytes += num_bytes
        self._kept_bytes += num_bytes

    def _release_drafts(self, session: Session[FrameT]) -> None:
        self._grow(session, -session.draft_bytes)
        session.kept, session.draft_bytes = [], 0

    def _release_kept(self, session: Session[FrameT]) -> None:
        self._grow(session, -session.kept_bytes)
        session.open, session.kept, session.draft_bytes = None, [], 0
        session.committed.clear()
        self._movable.pop(session.relayed, None)

    def _live(self) -> Iterator[Session[FrameT]]:
        for sessions in self._edges.values():
            yield from sessions.values()

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1


def _overloaded(found: str) -> OverloadedError:
    return OverloadedError(
        f"{found}, which is the limit: try again later.", retry_delay_ms=RETRY_DELAY_MS
    )
