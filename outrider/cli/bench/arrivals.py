"""When requests arrive, and with which prompts. Pure.

Open loop: the times are drawn before anything is sent, and do not wait for replies. Gaps are
gamma-distributed as in vLLM's `bench serve` (`--burstiness`): 1 is a Poisson process, smaller
values are burstier, larger ones more even.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from random import Random
from typing import Final

_WORDS: Final = (
    *("river", "window", "seven", "paper", "light", "garden", "answer", "copper", "north", "music"),
    *(
        "winter",
        "bridge",
        "table",
        "letter",
        "forest",
        "silver",
        "market",
        "story",
        "ocean",
        "morning",
    ),
)


def arrival_times(number: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """[number] seconds from the start, ascending; `rate` in requests per second, inf: all at
    once."""
    if math.isinf(rate):
        return [0.0] * number
    rng = Random(seed)
    gaps = (rng.gammavariate(burstiness, 1.0 / (rate * burstiness)) for _ in range(number))
    return list(accumulate(gaps))


def made_prompts(num_words: int, seed: int) -> Iterator[str]:
    """Endless prompts of so many words. No two begin alike, so that caches of prefixes gain nothing
    by them."""
    rng = Random(seed)
    number = 0
    while True:
        number += 1
        words = " ".join(rng.choices(_WORDS, k=max(1, num_words - 4)))
        yield f"{number}. Tell a story: {words}"
