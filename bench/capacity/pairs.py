"""Pairs of a target and a draft model, by what their calls cost (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

_SPREAD: Final = 3.0
"""Of confidences around their mean: those of a beta distribution with this many pseudo-counts."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """Milliseconds of a model's call, which has its core to itself: fixed_ms + row_ms * rows."""

    fixed_ms: float
    row_ms: float

    def ms(self, rows: int) -> float:
        """Of a call with so many rows; 0 for none."""
        return self.fixed_ms + self.row_ms * rows if rows else 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft model of one vocabulary."""

    name: str
    target: CallCost
    draft: CallCost
    """Of one step, with a row for each chat. An edge's core is as fast as the region's."""
    acceptance: float
    """Mean chance that a draft is right if those before it are."""


class Guess(NamedTuple):
    """What the draft model says of one place of a reply."""

    confidence: float
    """Its probability, given that all before it are right; calibrated."""
    is_right: bool
    wrong_id: int
    """What it says if it is wrong, or if something before it was."""


@lru_cache(maxsize=1 << 16)
def guess_of(pair: Pair, chat: int, place: int, vocabulary_size: int) -> Guess:
    """The same whoever computes it, an edge or the region, and however often."""
    rng = Random(f"{pair.name} {chat} {place}")
    mean = pair.acceptance
    confidence = rng.betavariate(_SPREAD * mean, _SPREAD * (1 - mean))
    return Guess(confidence, rng.random() < confidence, rng.randrange(1, vocabulary_size))
