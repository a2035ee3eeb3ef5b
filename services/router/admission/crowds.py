"""How many sessions clients without a key have open above LOW, by where they come from. Pure.

Whoever opens many sessions at once would have most of a replica's places, and everybody else waits
for the next one. So of one address prefix only a few have the class that they ask for; further ones
are LOW: they take whatever room nobody else wants, and give their places up to whom they outrank.
"""

from __future__ import annotations

from services.router.admission.policy import Priority


class Crowds:
    """By address prefix, of which a keyed hash is known. `enter` and `leave` go in pairs."""

    def __init__(self, limit: int) -> None:
        """`limit`: sessions above LOW that an address may have open."""
        self._limit = limit
        self._num_open: dict[bytes, int] = {}
        """Addresses with sessions above LOW: no more than there are live sessions."""

    def __len__(self) -> int:
        return len(self._num_open)

    def highest(self, address: bytes) -> Priority:
        """The highest class that one more session from there may have; of no address: any."""
        is_full = self._num_open.get(address, 0) >= self._limit
        return Priority.LOW if is_full else Priority.HIGH

    def enter(self, address: bytes, priority: Priority) -> None:
        """A session of this class begins."""
        if address and priority > Priority.LOW:
            self._num_open[address] = self._num_open.get(address, 0) + 1

    def leave(self, address: bytes, priority: Priority) -> None:
        """It ended."""
        if not address or priority is Priority.LOW:
            return
        self._num_open[address] -= 1
        if not self._num_open[address]:
            del self._num_open[address]
