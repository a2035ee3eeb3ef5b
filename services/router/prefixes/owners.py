"""Sets of replicas by number, each kept once: bit i of a set's mask is replica i (pure).

The blocks of a prompt are mostly held by the same replicas, so a block keeps the number of its set
and not the set. Taking a replica out of everything then changes the sets, never the blocks.
"""

from __future__ import annotations

from array import array

NOBODY = 0
"""Number of the empty set."""


class OwnerSets:
    """Numbered masks with the count of their uses; a set that nobody uses is forgotten.

    Two numbers may stand for equal sets after `drop`; no set loses uses by that.
    """

    def __init__(self) -> None:
        self.masks: list[int] = [0]
        """By number. Read freely; changed here alone."""
        self._numbers: dict[int, int] = {0: NOBODY}
        self._uses = array("q", [0])
        self._free: list[int] = []

    def __len__(self) -> int:
        """Sets in use, and the empty one."""
        return len(self.masks) - len(self._free)

    def added(self, number: int, bit: int) -> int:
        """One use of a set becomes one of that set with `bit`; returns its number."""
        mask = self.masks[number]
        return number if mask & bit else self._moved(number, mask | bit)

    def removed(self, number: int, bit: int) -> int:
        """One use of a set becomes one of that set without `bit`; returns its number."""
        mask = self.masks[number]
        return self._moved(number, mask & ~bit) if mask & bit else number

    def enter(self) -> int:
        """One more use of the empty set."""
        self._uses[NOBODY] += 1
        return NOBODY

    def leave(self, number: int) -> None:
        """One use less."""
        self._uses[number] -= 1
        if self._uses[number] == 0 and number != NOBODY:
            if self._numbers.get(self.masks[number]) == number:
                del self._numbers[self.masks[number]]
            self.masks[number] = 0
            self._free.append(number)

    def drop(self, bit: int) -> None:
        """Take a replica out of every set. Time: that of all sets, not of all blocks."""
        for number, mask in enumerate(self.masks):
            if mask & bit:
                if self._numbers.get(mask) == number:
                    del self._numbers[mask]
                self.masks[number] = mask & ~bit
                self._numbers.setdefault(mask & ~bit, number)

    def check_invariants(self) -> None:
        """Raises AssertionError if numbers and masks disagree."""
        for mask, number in self._numbers.items():
            assert self.masks[number] == mask
            assert number == NOBODY or self._uses[number] > 0, "a set without uses has a number"
        assert all(self._uses[number] == 0 for number in self._free)
        assert len(set(self._free)) == len(self._free)

    def _moved(self, number: int, mask: int) -> int:
        to = self._numbers.get(mask)
        if to is None:
            to = self._make(mask)
        self._uses[to] += 1
        self.leave(number)
        return to

    def _make(self, mask: int) -> int:
        if self._free:
            number = self._free.pop()
            self.masks[number] = mask
        else:
            number = len(self.masks)
            self.masks.append(mask)
            self._uses.append(0)
        self._numbers[mask] = number
        return number
