"""How many sessions clients without a key have open above LOW, by where they come from. Pure.

Whoever opens many sessions at once would have most of a replica's places, and everybody else waits
for the next one. So while others are there, only a few of one address prefix have the class that
they ask for; further ones are LOW: they take whatever room nobody else wants, and give their places
up to whom they outrank. Who is alone has the class of his choice.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from outrider.session_types import Priority

MEMORY_S: Final = 60.0
"""Others are expected back for so long after their last session."""
MAX_REMEMBERED: Final = 1024
"""Shares without a session whose last end is remembered."""


class Crowds:
    """By share (Ticket.share), and by address prefix, of which a keyed hash is known. `enter` and
    `leave` go in pairs. Times in seconds."""

    def __init__(self, limit: int) -> None:
        """`limit`: sessions above LOW that an address may have open while others are there."""
        self._limit = limit
        self._num_outranking: dict[bytes, int] = {}
        """By address: sessions above LOW."""
        self._num_open: dict[str, int] = {}
        """By share: sessions of any class."""
        self._left_at: OrderedDict[str, float] = OrderedDict()
        """Shares without a session, by the end of their last one."""

    def __len__(self) -> int:
        return len(self._num_outranking)

    def highest(self, share: str, address: bytes, now: float) -> Priority:
        """The highest class that one more session from there may have; of no address: any."""
        is_full = self._num_outranking.get(address, 0) >= self._limit
        return Priority.LOW if is_full and not self._is_alone(share, now) else Priority.HIGH

    def enter(self, share: str, address: bytes, priority: Priority) -> None:
        """A session of this class begins."""
        self._left_at.pop(share, None)
        self._num_open[share] = self._num_open.get(share, 0) + 1
        if address and priority > Priority.LOW:
            self._num_outranking[address] = self._num_outranking.get(address, 0) + 1

    def leave(self, share: str, address: bytes, priority: Priority, now: float) -> None:
        """It ended."""
        self._num_open[share] -= 1
        if not self._num_open[share]:
            del self._num_open[share]
            self._left_at[share] = now
            if len(self._left_at) > MAX_REMEMBERED:
                self._left_at.popitem(last=False)
        if address and priority > Priority.LOW:
            self._num_outranking[address] -= 1
            if not self._num_outranking[address]:
                del self._num_outranking[address]

    def _is_alone(self, share: str, now: float) -> bool:
        if len(self._num_open) > (share in self._num_open):
            return False
        others = (at for other, at in reversed(self._left_at.items()) if other != share)
        return now - next(others, float("-inf")) > MEMORY_S
