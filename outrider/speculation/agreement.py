"""How far two texts agree."""

from __future__ import annotations

from collections.abc import Sequence


def num_agreeing(left: Sequence[object], right: Sequence[object]) -> int:
    """How many of the first items, ids or characters, are the same in both."""
    for at, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return at
    return min(len(left), len(right))
