"""What an HTTP API is, to the edge: a way to read requests and to write replies (pure).

Each API is one module with a ChatApi. `plan` makes of a request's body the chats that answer it,
one for each choice, and a ReplyWriter; the writer makes of what these chats tell what the client is
sent: pieces of an event stream, or one body at the end. Everything between them, credentials,
limits, sessions, resumption, cancellation, back-pressure, is the same for all APIs (replying.py,
stream.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider.errors import OutriderError
from services.edge.http import sse
from services.edge.session.events import ChatRequest, ClientEvent


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a reply."""

    body: bytes
    """JSON, as it came."""
    now_s: int
    """Unix time."""
    random_seed: int
    """Of 53 bits, for a request that names no seed: JavaScript reads larger numbers inexactly."""
    max_choices: int
    """Most chats that one request may begin."""
    idempotency_key: str = ""
    last_event_id: str = ""
    """What the client has of the reply already, as its event stream said (progress.py)."""
    trace: tuple[str, str] = ("", "")
    """W3C traceparent and tracestate."""


class ReplyWriter(Protocol):
    """Writes one reply; `index` is the number of the chat among those planned. The chats may tell
    their events in any order among each other."""

    def take(self, index: int, event: ClientEvent) -> bytes:
        """What the client is sent at once for this event; empty: nothing. Never a Failed."""
        ...

    def whole(self) -> bytes:
        """All chats have ended well: the last of what the client is sent, or all of it."""
        ...

    def failed(self, error: OutriderError) -> bytes:
        """The last of an event stream that has begun and cannot go on."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedReply:
    """How a request is answered."""

    chats: tuple[ChatRequest, ...]
    writer: ReplyWriter
    is_streamed: bool
    """Whether the client gets an event stream; otherwise one body of JSON."""
    user: str = ""
    """Who asks, as the key's owner names their users."""
    keepalive: bytes = sse.COMMENT
    """What is sent on a stream on which nothing has come for a while."""


@dataclass(frozen=True, slots=True)
class ChatApi:
    """One API's way to ask for a reply."""

    plan: Callable[[Asked], PlannedReply]
    """Raises InvalidRequestError."""
    error_body: Callable[[OutriderError, str], bytes]
    """JSON of an error; the text is the id of the request."""
