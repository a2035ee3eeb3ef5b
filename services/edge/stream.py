"""What a client's stream, and what is served on it, know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.edge.session.events import Input


class ClientStream(Protocol):
    """The way to a client."""

    def send(self, payload: bytes) -> None:
        """Send one EdgeFrame."""
        ...

    def end(self, last: bytes = b"") -> None:
        """End the stream, after the frame `last` if it is not empty."""
        ...


class RequestStream(ClientStream, Protocol):
    """A stream on which a request came."""

    @property
    def address(self) -> str:
        """The address prefix of its client."""
        ...

    @property
    def connection_secret(self) -> bytes:
        """16 random bytes that the streams of its connection share, and no others."""
        ...

    def begin_chat(self, client: bytes) -> Callable[[], None]:
        """Count a chat of this client, until the returned function is called. Raises
        OverloadedError."""
        ...

    def follow(self, handler: StreamHandler) -> None:
        """Pass what comes from the client to `handler` from now on."""
        ...


class StreamHandler(Protocol):
    """What is served on a stream: a chat, or a prompt that is being typed."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""
        ...

    def receive(self, payload: bytes) -> None:
        """A frame from the client."""
        ...

    def feed(self, item: Input) -> None:
        """The stream ends, for this reason."""
        ...

    def client_lost(self) -> None:
        """The client's connection was lost; the client may come back."""
        ...
