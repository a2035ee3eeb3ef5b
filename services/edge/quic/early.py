"""What came before its handshake was complete, in 0-RTT (pure).

It may be a recording that somebody sends again (RFC 8470), so it waits; each frame takes constant
time, and what is kept for a stream counts as well as its bytes.
"""

from __future__ import annotations

from typing import Final

from services.edge.quic.budget import Budget

STREAM_BYTES: Final = 512
"""Of a stream that is kept, besides its data."""


class EarlyStreams:
    """Streams of one connection, in the order in which they began."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._streams: dict[int, tuple[bytearray, bool]] = {}

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def keep(self, stream_id: int, data: bytes, end_stream: bool) -> bool:
        """Keep what came next of a stream; False if there is no room."""
        kept = self._streams.get(stream_id)
        if not self._budget.take(len(data) + (STREAM_BYTES if kept is None else 0)):
            return False
        held = bytearray() if kept is None else kept[0]
        held += data
        self._streams[stream_id] = held, end_stream
        return True

    def drop(self, stream_id: int) -> None:
        """The client gave a stream up."""
        if (kept := self._streams.pop(stream_id, None)) is not None:
            self._budget.give_back(len(kept[0]) + STREAM_BYTES)

    def take(self) -> list[tuple[int, bytes, bool]]:
        """All that is kept: stream, bytes, and whether more will follow. It is let go here."""
        streams, self._streams = self._streams, {}
        self._budget.clear()
        return [(number, bytes(data), ended) for number, (data, ended) in streams.items()]
