"""From a draft model's confidence to the chance that the target agrees, by position in the reply.

The confidence in a greedy choice is the largest probability of the row (softmax over the head,
temperature 1). In a sampled choice draft and target have the same noise, and the confidence grows
with the lead of the chosen token over the next: if it exceeds the difference between the scores of
draft and target, the target chooses the same token, however flat the distribution is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import exp
from typing import Final, TypeAlias

Curve: TypeAlias = tuple[float, ...]
"""The chance that the target agrees, on an even grid 0 .. 1 of the draft's confidence."""
_IDENTITY: Final[Curve] = (0.0, 1.0)


def sampled_confidence(lead: float) -> float:
    """Confidence in a sampled choice whose noisy score leads the next by `lead`, in units of scores
    (temperature times the lead of score / temperature + noise)."""
    return 1.0 - exp(-max(0.0, lead))


@dataclass(frozen=True, slots=True)
class DraftCalibration:
    """One piecewise linear curve per range of the reply's tokens, greedy and sampled apart. The
    default is the identity."""

    begins: tuple[int, ...] = (0,)
    """[b] the first reply token of each range, ascending from 0."""
    greedy: tuple[Curve, ...] = (_IDENTITY,)
    """[b] at temperature 0."""
    sampled: tuple[Curve, ...] = (_IDENTITY,)
    """[b] above it, draft and target having the same noise."""

    def __post_init__(self) -> None:
        """Raises ValueError for ranges and curves that cannot be."""
        begins = self.begins
        if not begins or begins[0] != 0 or list(begins) != sorted(set(begins)):
            raise ValueError("a calibration's ranges do not ascend from the reply's token 0")
        for curves in (self.greedy, self.sampled):
            if len(curves) != len(begins):
                raise ValueError(f"{len(curves)} calibration curves for {len(begins)} ranges")
            for curve in curves:
                if len(curve) < 2 or not all(0.0 <= chance <= 1.0 for chance in curve):
                    raise ValueError("a calibration is no list of chances")

    def chance(self, confidence: float, position: int, *, sampled: bool) -> float:
        """Chance of agreement at the reply's token `position`."""
        curves = self.sampled if sampled else self.greedy
        curve = curves[bisect_right(self.begins, position) - 1]
        at = min(max(confidence, 0.0), 1.0) * (len(curve) - 1)
        low = min(int(at), len(curve) - 2)
        return curve[low] + (at - low) * (curve[low + 1] - curve[low])
