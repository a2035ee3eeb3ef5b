"""When this process wakes up for what can wait: at the same times for all of it.

A wake-up costs an idle process more than most of what it does then: a switch there and back, and
cold caches. So timers that need no exact time are due together, as with `round_jiffies` of Linux
and `AccuracySec=` of systemd.timer(5). Processes of one machine are out of step with one another.
"""

from __future__ import annotations

import math
import random
from typing import Final

INTERVAL_S: Final = 0.1
"""Of what is to share its wake-ups."""
_EARLY: Final = 0.25
"""A timer that is called by this share of an interval too early is called in time."""
PHASE: Final = random.random()
"""This process's, as a share of an interval. Process ids would not do: in containers all are 1."""


def next_wake_up(now: float, interval_s: float = INTERVAL_S, phase: float = PHASE) -> float:
    """The next of a process's times, which are `interval_s` apart on the clock of `now`: 0.25 to
    1.25 intervals ahead, and one interval for who just woke up at such a time. Pure."""
    return (math.floor(now / interval_s - phase + _EARLY) + 1 + phase) * interval_s
