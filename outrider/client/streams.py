"""What chats need of a connection to an edge, whichever way it goes."""

from __future__ import annotations

from typing import Protocol

from outrider.client.protocol import CloseCode
from outrider.client.ways import Way
from outrider.errors import OutriderError


class StreamReader(Protocol):
    """Receiver of a stream's bytes."""

    def received(self, data: bytes, end_stream: bool) -> None:
        """Bytes from the edge; `end_stream`: no more will follow."""
        ...

    def failed(self, error: OutriderError) -> None:
        """The stream was cut off."""
        ...


class Connection(Protocol):
    """One connection."""

    lost: OutriderError | None
    """Why it cannot be used any more; None: it can."""
    is_leaving: bool
    """Its edge is being stopped: chats under way may end here, others go another way."""
    process_name: bytes
    """Name of the edge process at the other end, as read from chats' resume tokens
    (protocol.process_name); empty: unknown."""

    @property
    def way(self) -> Way:
        """Over what it goes."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        ...

    @property
    def was_established(self) -> bool:
        """Whether the edge ever answered."""
        ...

    def open(self, reader: StreamReader, data: bytes) -> int:
        """Open a stream, send `data` on it and return its number. Raises the error that lost the
        connection, if it is lost, and OverloadedError if it takes no more streams."""
        ...

    def send(self, stream_id: int, data: bytes) -> None:
        """Send on a stream that is open; on one that has ended, nothing happens."""
        ...

    def drop(self, stream_id: int) -> None:
        """Give a stream up in both directions, at once."""
        ...

    async def migrate(self) -> None:
        """Continue on another path; streams stay as they are. Raises UnavailableError where that
        cannot be."""
        ...

    def shut(self, code: CloseCode = CloseCode.DONE, error: OutriderError | None = None) -> None:
        """Close. `error` is what streams that are open end with; None: the client is closed."""
        ...
