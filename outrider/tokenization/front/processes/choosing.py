"""Who of several gets the next job."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random


def two_choices(loads: Sequence[int], rng: Random) -> int:
    """The less loaded of two picked at random: near the best of all, without herding (Mitzenmacher,
    "The Power of Two Choices in Randomized Load Balancing", 2001). `loads` is not empty."""
    if len(loads) == 1:
        return 0
    first, second = rng.sample(range(len(loads)), 2)
    return first if loads[first] <= loads[second] else second
