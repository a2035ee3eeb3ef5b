"""How much clients may send before their handshakes are complete (pure)."""

from __future__ import annotations


class EarlyRoom:
    """Bytes of 0-RTT that one edge keeps, of all connections together: connections whose handshake
    is not complete are not counted against any other limit, and cost their senders next to
    nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        """Kept now."""

    def take(self, num_bytes: int) -> bool:
        """Keep so many more; False, and nothing is kept, if there is no room."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """So many are not kept any more."""
        self.num_bytes -= num_bytes
