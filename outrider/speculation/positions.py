"""Places in a reply that are calibrated apart: its first tokens are the hardest to foretell."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

POSITION_BEGINS: Final = (0, 1, 2, 3, 8)
"""The first reply token of each bucket: tokens 0, 1, 2, 3 to 7, and all beyond."""


def position_bucket(position: int) -> int:
    """The bucket of the reply's token `position`, counted from 0."""
    return bisect_right(POSITION_BEGINS, position) - 1
