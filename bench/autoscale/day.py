"""A day of chats: a night without any but one, a morning, a crowd within a minute at noon, and
an evening. Seeded.

`LEVELS` says how many chats a second come at which hour; between two entries it is a straight line.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache

from bench.scale.demand import Ask

DAY_S = 86_400.0
LEVELS = (
    (0.0, 0.0),
    (6.0, 0.0),
    (6.25, 0.15),
    (9.0, 1.0),
    (12.0, 1.0),
    (12.0 + 1 / 60, 4.0),
    (12.75, 4.0),
    (13.25, 1.0),
    (18.0, 1.25),
    (20.0, 1.75),
    (22.0, 0.75),
    (23.5, 0.0),
    (24.0, 0.0),
)
"""Hours, and chats a second. At noon a crowd comes: four times as many within a minute."""
_HOURS = [at for at, _ in LEVELS]
LONE_AT_S = 3.0 * 3600.0
"""About when a single chat comes in the night."""
OUTAGE_AT_S = 15.0 * 3600.0
"""When half of the replicas are killed at once."""
PROMPT_TOKENS = 200
"""On average; behind what a replica has of the conversation already."""
REPLY_TOKENS = 600
_SHORTEST, _LONGEST = 0.1, 4.0
"""Of a prompt or a reply, over its average."""


def level(second: float) -> float:
    """Chats a second at this second of the day."""
    hour = second / 3600.0
    after = bisect_right(_HOURS, hour)
    if after == len(LEVELS):
        return LEVELS[-1][1]
    (begin, low), (end, high) = LEVELS[after - 1], LEVELS[after]
    return low + (high - low) * (hour - begin) / (end - begin)


def asks(seed: int, share: float = 1.0) -> Iterator[Ask]:
    """A day's chats in order (thinning: Lewis and Shedler, 1979); `share`: of them."""
    chance = random.Random(seed)
    most = max(rate for _, rate in LEVELS) * share
    lone_at = LONE_AT_S + chance.uniform(-1800.0, 1800.0)
    now, number = 0.0, 0
    while (now := now + chance.expovariate(most)) < DAY_S:
        if number == 0 and now > lone_at:
            yield _ask(1, lone_at, chance)
            number = 1
        if chance.random() * most < level(now) * share:
            number += 1
            yield _ask(number, now, chance)


def _ask(number: int, at: float, chance: random.Random) -> Ask:
    prompt = _drawn(PROMPT_TOKENS, chance)
    return Ask(number, at, 0, _prompt(prompt), (), _drawn(REPLY_TOKENS, chance))


def _drawn(mean: int, chance: random.Random) -> int:
    return int(mean * min(max(chance.expovariate(1.0), _SHORTEST), _LONGEST))


@cache
def _prompt(num_tokens: int) -> tuple[int, ...]:
    """Only its length counts here."""
    return (0,) * num_tokens
