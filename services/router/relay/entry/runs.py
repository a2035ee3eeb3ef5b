"""Which of several runs of one chat is the one that somebody listens to. Pure.

A client that turns to another edge opens its chat anew behind what it has. Where the first edge did
not die but starves or is cut off, the old run goes on for as long as that one remembers its chats
(`edge.resume_window_s`), and takes a place on a replica for nobody.

Edges bind request ids to the trust group they are of. A run is of the same chat if prompt and
sampling are the same too: an id that is used for something else stands in nobody's way.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

from outrider.v1 import inference_pb2, router_pb2
from services.router.relay.assignment import chat_of
from services.router.relay.sessions import Session

Up = router_pb2.RouteRequest
Name: TypeAlias = tuple[str, str, bytes]
"""Tenant, request id, and a digest of what was asked for."""


class Runs:
    """The latest run of every chat that says who it is."""

    def __init__(self) -> None:
        self._latest: dict[Name, Session[Up]] = {}
        self._keys: dict[int, Name] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def began(self, session: Session[Up]) -> Session[Up] | None:
        """A session came; the older run of its chat that it goes on with, from another stream. One
        that brings no tokens may be a copy that is meant: it replaces nobody."""
        assert session.open is not None, "a session that comes has its open"
        frame = session.open.frame.open
        if not frame.request_id:
            return None
        key = self._keys[session.relayed] = frame.tenant, frame.request_id, _digest(frame)
        older = self._latest.get(key)
        self._latest[key] = session
        goes_on = older is not None and session.upto > 0 and older.edge != session.edge
        return older if goes_on else None

    def ended(self, session: Session[Up]) -> None:
        """A session is over."""
        key = self._keys.pop(session.relayed, None)
        if key is not None and self._latest.get(key) is session:
            del self._latest[key]


def _digest(frame: inference_pb2.OpenSession) -> bytes:
    digest = blake2b(chat_of(frame), digest_size=16)
    if frame.HasField("messages"):
        digest.update(frame.messages.SerializeToString(deterministic=True))
    return digest.digest()
