"""How many rows a call really computes (pure).

Engines that prepare a call for its number of rows pay for every change of that number. They round
it up, and keep the last one while that wastes little; rows in between are nearly free, and a
scheduler that knows fills them with drafts. Engine and scheduler each keep a CallSize; fed with
the same calls, both know the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizingRule:
    """An engine's habit. The default is an engine that does not care."""

    quantum: int = 1
    """Calls of more than one row are rounded up to a multiple of this."""
    resize_rows: int = 0
    """What another size than the last call's costs, in rows of equal time."""


NO_SIZING = SizingRule()


class CallSize:
    """Sizes of successive calls. `take` is the only method that changes it.

    When to give a large size up is the ski-rental problem (Karlin et al., Algorithmica 1988): rows
    computed in vain since the size was last needed are the rent, a resize there and back the price.
    """

    def __init__(self, rule: SizingRule) -> None:
        self._rule = rule
        self._last = 0
        self._rent = 0

    def peek(self, num_rows: int) -> int:
        """Rows that a call of `num_rows` would compute now."""
        waste = self._last - num_rows
        if 0 <= waste and self._rent + waste <= 2 * self._rule.resize_rows:
            return self._last
        if num_rows <= 1:
            return num_rows
        return -(-num_rows // self._rule.quantum) * self._rule.quantum

    def cost_rows(self, num_rows: int) -> int:
        """Rows of equal time: those computed, and the resize if there would be one."""
        size = self.peek(num_rows)
        return size if size == self._last else size + self._rule.resize_rows

    def take(self, num_rows: int) -> int:
        """Note a call; returns the rows it computes."""
        size = self.peek(num_rows)
        waste = size - num_rows
        self._rent = 0 if size != self._last or waste < self._rule.quantum else self._rent + waste
        self._last = size
        return size
