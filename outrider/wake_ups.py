"""Common wake-up times for all timers of this process that need no exact time.

Most timers do less work than it costs an idle process to wake up: a switch there and back, and cold
caches. So such timers are due together, as with `round_jiffies` of Linux and `AccuracySec=` of
systemd.timer(5). Processes of one machine are out of step with one another.
"""

from __future__ import annotations

import math
import random
from typing import Final

INTERVAL_S: Final = 0.1
"""Time between shared wake-ups."""
_EARLY: Final = 0.25
"""A timer that is called by this share of an interval too early is called in time."""
PHASE: Final = random.random()
"""This process's, as a share of an interval. Process ids would not do: in containers all are 1."""


def next_wake_up(now: float, interval_s: float = INTERVAL_S, phase: float = PHASE) -> float:
    """The next shared wake-up on the clock of `now`; they are `interval_s` apart. 0.25 to 1.25
    intervals ahead; exactly one interval if `now` is such a time. Pure."""
    return (math.floor(now / interval_s - phase + _EARLY) + 1 + phase) * interval_s
