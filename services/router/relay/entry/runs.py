"""Which of several runs of one chat is the one that somebody listens to. Pure.

A client that turns to another edge opens its chat anew behind what it has. Where the first edge did
not die but starves or is cut off, the old run goes on for as long as that one remembers its chats
(`edge.resume_window_s`), and takes a place on a replica for nobody.
"""

from __future__ import annotations

from outrider.v1 import router_pb2
from services.router.relay.sessions import Session

Up = router_pb2.RouteRequest


class Runs:
    """The latest run of every chat that says who it is."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Session[Up]] = {}
        self._keys: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def began(self, session: Session[Up]) -> Session[Up] | None:
        """A session came; the older run of its chat that it goes on with, from another stream. One
        that brings no tokens may be a copy that is meant: it replaces nobody."""
        assert session.open is not None, "a session that comes has its open"
        frame = session.open.frame.open
        if not frame.request_id:
            return None
        key = self._keys[session.relayed] = frame.tenant, frame.request_id
        older = self._latest.get(key)
        self._latest[key] = session
        goes_on = older is not None and session.upto > 0 and older.edge != session.edge
        return older if goes_on else None

    def ended(self, session: Session[Up]) -> None:
        """A session is over."""
        key = self._keys.pop(session.relayed, None)
        if key is not None and self._latest.get(key) is session:
            del self._latest[key]
