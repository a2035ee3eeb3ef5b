"""Sessions whose commits go straight to their edges, while everything else of them goes through the
routers that opened them (docs/decisions/0026-commits-past-the-router.md)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from outrider.errors import MalformedFrameError, PermissionDeniedError
from outrider.telemetry.families import Family
from outrider.telemetry.metrics import Metrics
from outrider.v1 import inference_pb2
from services.inference.streaming import wire
from services.inference.streaming.tickets import TicketFault, TicketTable

if TYPE_CHECKING:
    from services.inference.streaming.sessions import LiveSession, Peer

ATTACHED: Final = Family(
    "outrider_direct_attached_sessions",
    "Sessions whose edges asked for their commits, by what came of it.",
)
PROGRESS_INTERVAL_S: Final = 0.5
"""How often a router is told how far a session has come whose commits go by it: a quarter of the
time after which it takes a silent replica to hang."""
_MAX_EDGE_CHARS: Final = 256
_REFUSED: Final = {
    TicketFault.UNKNOWN: "the ticket is wrong, was used before, or its session is over",
    TicketFault.FOREIGN: "the ticket is another edge's",
    TicketFault.EXPIRED: "the ticket has expired: attach sooner",
}


class DirectCommits:
    """Where the commits of one session go."""

    def __init__(self, edge: str, router: Peer, number: int) -> None:
        """`number` is its router's."""
        self.edge = edge
        self.ticket = b""
        self.is_under_way = False
        """Whether commits go to the edge."""
        self.number = 0
        """Its edge's; 0: it is not attached."""
        self._router, self._router_number = router, number
        self._edge_stream: Peer | None = None
        self._upto = 0
        """Final tokens; 0: none was committed here."""
        self._told_in = 0
        """The interval, counted since the clock's zero, in which its router was told last: the same
        one for all sessions, so that they share messages."""

    def commit(self, commit: bytes, upto: int, now: float) -> None:
        """Send a commit, as `wire.commit_bytes` makes it, where it has to go now: `upto` tokens are
        final with it."""
        self._upto = upto
        if not self.is_under_way or self._edge_stream is None:
            self._router.send(wire.session_bytes(self._router_number) + commit)
            self._switch(now)
            return
        self._edge_stream.send(wire.session_bytes(self.number) + commit)
        interval = int(now / PROGRESS_INTERVAL_S)
        if interval != self._told_in:
            self._told_in = interval
            progress = inference_pb2.SessionProgress(upto=self._upto)
            told = inference_pb2.SessionDown(session=self._router_number, progress=progress)
            self._router.send(told)

    def attach(self, stream: Peer, number: int, now: float) -> None:
        """Its edge wants its commits, under this number. They go there behind the first token,
        which the router has to see."""
        self._edge_stream, self.number = stream, number
        if self._upto:
            self._switch(now)

    def detach(self) -> bool:
        """The edge's stream is gone; whether the session's commits went there."""
        was_under_way = self.is_under_way
        self._edge_stream, self.number = None, 0
        return was_under_way

    def end(self) -> None:
        """The session is over."""
        stream, number = self._edge_stream, self.number
        self._edge_stream, self.number = None, 0
        if stream is not None:
            stream.ended(number)

    def _switch(self, now: float) -> None:
        if self._edge_stream is None:
            return
        direct = inference_pb2.SessionDirect(upto=self._upto)
        self.is_under_way = True
        self._told_in = int(now / PROGRESS_INTERVAL_S)
        self._router.send(inference_pb2.SessionDown(session=self._router_number, direct=direct))


class DirectPaths:
    """The tickets of all sessions, and what came of them."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._clock = clock
        self._attached = metrics.counter(ATTACHED)
        self._tickets: TicketTable[LiveSession] = TicketTable(draw)

    def __len__(self) -> int:
        return len(self._tickets)

    def grant(
        self,
        direct: DirectCommits,
        session: LiveSession,
        opened: inference_pb2.SessionOpened,
        now: float,
    ) -> None:
        """Put a ticket into the answer to an open that asked for it."""
        direct.ticket = self._tickets.issue(session, direct.edge, now)
        opened.direct.ticket = direct.ticket

    def attach(self, ticket: bytes, edge: str, stream: Peer, number: int) -> LiveSession:
        """The session that this ticket is for; from now on, or from its first token on, its commits
        go to this stream, under this number. Raises PermissionDeniedError."""
        found = self._tickets.redeem(ticket, edge, self._clock())
        if isinstance(found, TicketFault):
            self._attached.add(1, {"result": found.value})
            raise PermissionDeniedError(_REFUSED[found])
        assert found.direct is not None, "it has a ticket"
        found.direct.attach(stream, number, self._clock())
        self._attached.add(1, {"result": "attached"})
        return found

    def ended(self, direct: DirectCommits) -> None:
        """A session is over."""
        self._tickets.withdraw(direct.ticket)
        direct.end()


def wished(opening: inference_pb2.OpenSession, router: Peer, number: int) -> DirectCommits | None:
    """What an open asks for; None: nothing. `number`: its router's. Raises MalformedFrameError."""
    if not opening.HasField("direct"):
        return None
    edge = opening.direct.edge
    if len(edge) > _MAX_EDGE_CHARS:
        raise MalformedFrameError(
            f"the edge's name has {len(edge)} characters; name one of {_MAX_EDGE_CHARS} at most"
        )
    return DirectCommits(edge, router, number)
