"""Application protocols served besides the native protocol's chats. The client chooses one when it
connects (ALPN, RFC 7301)."""

from __future__ import annotations

from typing import Protocol

from aioquic.quic.connection import NetworkAddress

from outrider.client.protocol import CloseCode
from services.edge.quic.aioquic_shim import BoundedConnection, ProtocolLimits
from services.edge.quic.native_streams import Connection as NativeConnection


class Connection(NativeConnection, Protocol):
    """A connection with a complete handshake, as seen by the service of its streams."""

    quic: BoundedConnection
    unbilled_s: float
    """Loop time that its address prefix was not charged for yet; any code that works for it adds to
    it."""

    @property
    def peer(self) -> NetworkAddress | None:
        """The client's present address."""
        ...

    @property
    def local(self) -> NetworkAddress | None:
        """The edge's own address on this connection."""
        ...

    def close(self, error_code: int, reason_phrase: str) -> None:
        """Close it, with an error code of the application's protocol."""
        ...


class StreamService(Protocol):
    """Serves the streams of one connection."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        ...

    def received(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Bytes of a stream came; `end_stream`: no more will follow."""
        ...

    def reset(self, stream_id: int) -> None:
        """The client ended its side of a stream before it was complete."""
        ...

    def stopped(self, stream_id: int) -> None:
        """The client reads a stream no more."""
        ...

    def acknowledged(self) -> None:
        """A datagram was processed: the client may have acknowledged something."""
        ...

    def drain(self) -> None:
        """The edge stops: nothing further begins."""
        ...

    def lost(self) -> None:
        """The connection has ended."""
        ...


class ApplicationService(Protocol):
    """An application protocol that the listener offers besides its own."""

    alpn: str
    limits: ProtocolLimits

    def open(self, connection: Connection) -> StreamService:
        """Serve a connection, whose handshake is complete."""
        ...

    def close_code(self, code: CloseCode) -> int:
        """How this protocol calls the reason why the edge closes a connection."""
        ...

    async def idle(self) -> None:
        """Return when nothing is under way on any connection."""
        ...

    async def stop(self) -> None:
        """End everything that is under way."""
        ...
