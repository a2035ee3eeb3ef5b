"""Memory that clients make an edge hold, within bounds inside each other (pure)."""

from __future__ import annotations


class Budget:
    """Bytes of one connection, of all those of an address, or of the process: what one takes, all
    those around it have to have as well."""

    __slots__ = ("_max_bytes", "_within", "num_bytes")

    def __init__(self, max_bytes: int, within: Budget | None = None) -> None:
        self._max_bytes = max_bytes
        self._within = within
        self.num_bytes = 0
        """Held now."""

    def take(self, num_bytes: int) -> bool:
        """Hold so many more; False, and nothing is held, if there is no room."""
        if self.num_bytes + num_bytes > self._max_bytes:
            return False
        if self._within is not None and not self._within.take(num_bytes):
            return False
        self.num_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """So many are not held any more."""
        self.num_bytes -= num_bytes
        if self._within is not None:
            self._within.give_back(num_bytes)

    def clear(self) -> None:
        """Nothing is held any more."""
        self.give_back(self.num_bytes)
