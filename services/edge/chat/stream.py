"""The interface between a client's stream and the chat that is served on it.

Each listener (QUIC streams in services.edge.quic, HTTP requests in services.edge.http) has streams
of its own: they turn a chat's events into bytes for its client, and the client's data into inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from services.edge.session.events import ClientEvent, Input


class Backlog(Protocol):
    """The events that a client that came back lacks, in pieces of bounded size. It grows while the
    chat runs."""

    @property
    def is_over(self) -> bool:
        """Whether it has no more pieces."""
        ...

    def next(self) -> tuple[ClientEvent, str] | None:
        """The next piece, and the token to pass to ClientStream.tell; None: that was all. From then
        on the chat sends its commits to the client directly."""
        ...


class ClientStream(Protocol):
    """The way to a client."""

    def tell(self, event: ClientEvent, token: str = "") -> None:
        """Send an event to the client. `token`: for Accepted, the token to resume the chat with."""
        ...

    def catch_up(self, backlog: Backlog) -> None:
        """Send the client what it lacks, as fast as it reads. Nothing else is sent before the
        backlog is over; none of it counts as left unread."""
        ...

    def end(self, last: ClientEvent | None = None) -> None:
        """End the stream, after `last` if there is one, and after all of a backlog."""
        ...


class Peer(Protocol):
    """The other side of the connection on which a request came."""

    @property
    def address(self) -> str:
        """The address prefix of its client."""
        ...

    @property
    def connection_secret(self) -> bytes:
        """16 random bytes that the streams of its connection share, and no others."""
        ...


class RequestStream(ClientStream, Peer, Protocol):
    """A stream on which a request for a chat came."""

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat of this client, until the returned function is called. Raises
        OverloadedError."""
        ...

    def follow(self, handler: ChatHandler) -> None:
        """Pass the client's further inputs to `handler` from now on."""
        ...


class ChatHandler(Protocol):
    """The chat on a stream, or the request that waits to become one."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        ...

    @property
    def is_placed(self) -> bool:
        """Whether a region has, or had, what it asks for."""
        ...

    def feed(self, item: Input) -> None:
        """The client said something further, or the stream ends, for this reason."""
        ...

    def token_arrived(self) -> None:
        """The client has received its newest resume token."""
        ...

    def client_lost(self) -> None:
        """The client's connection was lost; the client may come back."""
        ...


class _Ended:
    """Handles streams that have ended. A chat and its stream would refer to each other otherwise,
    until they are collected as garbage, and to collect what an attack leaves stops the loop."""

    closed = True
    is_placed = False

    def feed(self, item: Input) -> None:
        """Ignored."""

    def token_arrived(self) -> None:
        """Ignored."""

    def client_lost(self) -> None:
        """Ignored."""


ENDED: Final = _Ended()
