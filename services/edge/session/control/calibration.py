"""What a source's promises are worth, learned from what became of its drafts."""

from __future__ import annotations

from math import exp, log

_CLOSEST = 0.005
"""Chances are told apart down to this distance from 0 and 1."""
_FIRST_RATE, _LAST_RATE = 0.1, 0.01
_HALVED_AFTER = 20
_LEAST_SLOPE, _MOST_SLOPE = 0.2, 2.0
_MOST_SHIFT = 4.0
_SLOPE_RATE = 0.25
"""Of the shift's: the slope's gradient is as much larger as promises are far from even."""


class Calibration:
    """Platt scaling (Platt 1999), online: chance = sigmoid(shift + slope * logit(promise)), moved
    after each draft along the gradient of its log loss. Begins as the identity, keeps the order of
    promises, and follows text of another kind within some hundred drafts."""

    def __init__(self) -> None:
        self._shift, self._slope = 0.0, 1.0
        self._num_seen = 0

    def chance(self, promise: float) -> float:
        """The chance that a draft is right, given all before it are; from what was promised."""
        return _sigmoid(self._shift + self._slope * _logit(promise))

    def observe(self, promise: float, right: bool) -> None:
        """A draft of this promise was decided, all before it having been right."""
        rate = max(_LAST_RATE, _FIRST_RATE / (1 + self._num_seen / _HALVED_AFTER))
        self._num_seen += 1
        x = _logit(promise)
        step = rate * (right - _sigmoid(self._shift + self._slope * x))
        self._shift = min(max(self._shift + step, -_MOST_SHIFT), _MOST_SHIFT)
        slope = self._slope + step * x * _SLOPE_RATE
        self._slope = min(max(slope, _LEAST_SLOPE), _MOST_SLOPE)


def _logit(chance: float) -> float:
    near = min(max(chance, _CLOSEST), 1 - _CLOSEST)
    return log(near / (1 - near))


def _sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))
