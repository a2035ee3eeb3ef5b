"""How far a draft model's own confidence is to be believed, by place in the reply."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, TypeAlias

Curve: TypeAlias = tuple[float, ...]
"""The chance that the target agrees, on an even grid 0 .. 1 of the draft's largest probability."""
_IDENTITY: Final[Curve] = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class DraftCalibration:
    """From the largest probability of a row (softmax over the head, temperature 1) to the chance
    that the target chooses the draft's token: one piecewise linear curve per range of the reply's
    tokens, greedy and sampled apart. The default takes the model at its word."""

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
