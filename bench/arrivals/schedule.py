"""When requests arrive."""

from __future__ import annotations

import itertools
import random


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which `count` requests of a Poisson process of `rate` per second arrive.

    The same seed gives the same process on another time scale.
    """
    rng = random.Random(seed)
    gaps = (rng.expovariate(1.0) for _ in range(count))
    return [at / rate for at in itertools.accumulate(gaps)]


def every(interval_s: float, begin_s: float, end_s: float) -> list[float]:
    """begin_s, begin_s + interval_s, ... before end_s."""
    count = max(0, int((end_s - begin_s) / interval_s))
    return [begin_s + number * interval_s for number in range(count)]
