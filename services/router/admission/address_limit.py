"""The limit on sessions above LOW of clients without a key, per address prefix. Pure.

One client that opens many sessions at once would take most of the replicas' slots and make all
others wait. So while other clients are present, only a few sessions of one address prefix get the
class that they ask for; further ones are LOW: they use free room and give way to higher classes. A
client without competitors has no limit.
"""

from __future__ import annotations

from typing import Final

from outrider.lru_map import LruMap
from outrider.session.types import Priority

PRESENCE_S: Final = 60.0
"""A flow counts as present for so long after its last session ended."""
MAX_REMEMBERED: Final = 1024
"""Most flows without a session whose last end is remembered."""


class AddressLimit:
    """Sessions by flow (`SessionRequest.flow`) and by hash of the address prefix. Every `open` is
    followed by one `close`. Times in seconds."""

    def __init__(self, max_above_low: int) -> None:
        """`max_above_low`: sessions above LOW that an address prefix may have open while other
        flows are present."""
        self._max_above_low = max_above_low
        self._num_above_low: dict[bytes, int] = {}
        """Open sessions above LOW by address hash."""
        self._num_open: dict[str, int] = {}
        """Open sessions of any class by flow."""
        self._left_at: LruMap[str, float] = LruMap(MAX_REMEMBERED)
        """Flows without a session, by the end of their last one."""

    def __len__(self) -> int:
        return len(self._num_above_low)

    def highest(self, flow: str, address_hash: bytes, now: float) -> Priority:
        """The highest class that one more session may have; HIGH for clients with a key."""
        is_full = self._num_above_low.get(address_hash, 0) >= self._max_above_low
        return Priority.LOW if is_full and not self._is_alone(flow, now) else Priority.HIGH

    def open(self, flow: str, address_hash: bytes, priority: Priority) -> None:
        """A session of this class begins."""
        self._left_at.pop(flow)
        self._num_open[flow] = self._num_open.get(flow, 0) + 1
        if address_hash and priority > Priority.LOW:
            self._num_above_low[address_hash] = self._num_above_low.get(address_hash, 0) + 1

    def close(self, flow: str, address_hash: bytes, priority: Priority, now: float) -> None:
        """A session that was opened with the same arguments ended."""
        self._num_open[flow] -= 1
        if not self._num_open[flow]:
            del self._num_open[flow]
            self._left_at.put(flow, now)
        if address_hash and priority > Priority.LOW:
            self._num_above_low[address_hash] -= 1
            if not self._num_above_low[address_hash]:
                del self._num_above_low[address_hash]

    def _is_alone(self, flow: str, now: float) -> bool:
        if len(self._num_open) > (flow in self._num_open):
            return False
        others = (at for other, at in reversed(self._left_at.items()) if other != flow)
        return now - next(others, float("-inf")) > PRESENCE_S
