"""How far the replica is overloaded, and what it gives up for that."""

from __future__ import annotations

from enum import IntEnum

_HOLD_S = 1.0
"""A level is left only after the pressure has been below it for this long."""
_RELEASE = 0.7
"""Share of a level's threshold that the pressure has to fall below."""


class Level(IntEnum):
    """What is given up, each level with all those before it. Admitted sessions are never
    dropped. The numbers are the wire's."""

    NORMAL = 0
    NO_DRAFTS = 1
    """Drafts are verified only in rows that cost nothing."""
    SMALL_CHUNKS = 2
    """Replies that have begun go before prompts."""
    QUEUE_LOW = 3
    """LOW sessions stay in the queue while others are there."""
    REFUSE = 4
    """New sessions are refused with a retry delay."""


THRESHOLDS = {
    Level.NO_DRAFTS: 0.25,
    Level.SMALL_CHUNKS: 0.5,
    Level.QUEUE_LOW: 0.75,
    Level.REFUSE: 1.0,
}
"""Pressure from which a level holds."""


class Overload:
    """The level, from a pressure of 0 (idle) to 1 (no more can be let in) and beyond.

    It rises at once and falls one level at a time, after a while: what is given up relieves the
    pressure, and would be taken up again too soon otherwise.
    """

    def __init__(self) -> None:
        self.level = Level.NORMAL
        self._pressed_at = 0.0

    def update(self, pressure: float, now: float) -> Level:
        """Take a measurement; returns the level from now on. `now` in seconds."""
        reached = max((n for n, least in THRESHOLDS.items() if pressure >= least), default=None)
        if reached is not None and reached >= self.level:
            self.level, self._pressed_at = reached, now
        elif self.level is not Level.NORMAL:
            if pressure >= _RELEASE * THRESHOLDS[self.level]:
                self._pressed_at = now
            elif now - self._pressed_at >= _HOLD_S:
                self.level, self._pressed_at = Level(self.level - 1), now
        return self.level
