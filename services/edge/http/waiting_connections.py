"""Connections for which there is no room yet: they wait, unread, until others close (pure but for
the futures that it is given).

A client that sends many requests at once opens a connection for each, up to the size of its pool,
and a refused connection is an error for its user, however often the client tries again. So a
connection beyond a limit waits for its turn: those of an address in order, and addresses take
turns.
"""

from __future__ import annotations

from asyncio import Future
from collections import OrderedDict, deque


class WaitingConnections:
    """Those of one edge. Who waits has at most half of the places, so that one address leaves as
    many to others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_each = -(-most // 2)
        self._by_prefix: OrderedDict[str, deque[Future[None]]] = OrderedDict()
        """In the order of the addresses' turns."""
        self._num = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._num

    def of(self, prefix: str) -> int:
        """How many connections of an address prefix wait."""
        return len(self._by_prefix.get(prefix, ()))

    def add(self, prefix: str, turn: Future[None], *, is_first: bool = False) -> bool:
        """A connection waits until `turn` has a result; False: there is no place to wait.
        `is_first`: it had its turn, and found no room."""
        if self._num >= self._most or self.of(prefix) >= self._most_each:
            return False
        waiting = self._by_prefix.setdefault(prefix, deque())
        if is_first:
            waiting.appendleft(turn)
        else:
            waiting.append(turn)
        self._num += 1
        return True

    def is_next(self, prefix: str, turn: Future[None]) -> bool:
        """Whether no other connection of its address is before it."""
        waiting = self._by_prefix.get(prefix)
        return waiting is not None and waiting[0] is turn

    def remove(self, prefix: str, turn: Future[None]) -> None:
        """It waits no more; does nothing for one that had its turn."""
        waiting = self._by_prefix.get(prefix)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            self._num -= 1
            if not waiting:
                del self._by_prefix[prefix]

    def wake(self, prefix: str = "") -> None:
        """There may be room: whoever is first at this address has its turn; if nobody waits there,
        or with no prefix, the first of the address whose turn it is."""
        if prefix not in self._by_prefix:
            prefix = next(iter(self._by_prefix), "")
        waiting = self._by_prefix.get(prefix)
        if waiting is None:
            return
        turn = waiting.popleft()
        self._num -= 1
        if waiting:
            self._by_prefix.move_to_end(prefix)
        else:
            del self._by_prefix[prefix]
        if not turn.done():
            turn.set_result(None)
        else:
            self.wake(prefix)
