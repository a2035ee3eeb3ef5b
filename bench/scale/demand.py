"""The requests of a day by region and time: groups of prompts with shared beginnings, by day and
night.

A group is a tenant's system prompt or document: most of its users are in one region, and each of
them asks something of their own behind it. Groups are as many per replica at every size of fleet,
150 at ten replicas, and each is asked again and again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.scale.regions import Region
from outrider.codec.block_hashes import block_hash, root_hash

GROUPS_PER_REPLICA = 15
BLOCK_TOKENS = 32
VOCABULARY_SIZE = 1 << 15
_HOME_SHARE = 0.85
"""Share of a group's asks that come from its home region."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of prompts and replies, in tokens."""

    shared_tokens: int = 480
    own_tokens: int = 32
    reply_tokens: int = 24
    """On average; geometric, at least 1."""


@dataclass(slots=True, eq=False)
class Ask:
    """One request."""

    number: int
    at: float
    """Seconds."""
    region: int
    """Where the user is: an index into the fleet's regions."""
    prompt: tuple[int, ...]
    hashes: tuple[bytes, ...]
    """Of the prompt's full blocks, as replicas and routers name them."""
    reply_tokens: int
    first_at: float = 0.0
    """When the first token was back at the user's router; 0.0 before."""
    ended_at: float = 0.0
    committed: int = 0
    """Tokens the router has passed on."""
    began_away: bool = False
    """Whether it was placed outside of its region at first."""
    num_places: int = 0
    """Replicas it was given to, one after the other."""
    cached_tokens: int = 0
    """Of the prompt, on the first of them."""
    error: str = ""
    """Why it got no reply."""
    tried: frozenset[str] = frozenset()
    """The replica that did not serve it to the end, if there was one."""

    @property
    def ttft_ms(self) -> float:
        """From the user's router and back to it."""
        return (self.first_at - self.at) * 1e3


@dataclass(frozen=True, slots=True)
class _Group:
    ids: tuple[int, ...]
    hashes: tuple[bytes, ...]
    home: int


class Demand:
    """A Poisson process of asks, its rate per region that of the hour there.

    `rate` is of all regions together on average; the `seconds` are one day, so that every region
    has its evening once. Before that, for `warm_s`, each group is asked once, as caches are never
    cold but on the first day.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        rate: float,
        seconds: float,
        *,
        num_groups: int,
        seed: int,
        warm_s: float = 0.0,
        shape: Shape | None = None,
        diurnal: bool = True,
    ) -> None:
        self._regions = regions
        self._rate = rate
        self._seconds = seconds
        self._warm_s = warm_s
        self._random = random.Random(seed)
        self._shape = shape or Shape()
        self._diurnal = diurnal
        self._groups = [self._group(number % len(regions)) for number in range(num_groups)]
        self._of_region = [
            [group for group in self._groups if group.home == region]
            for region in range(len(regions))
        ]

    def asks(self) -> Iterator[Ask]:
        """In order of time (thinning: Lewis and Shedler, 1979)."""
        chance, count = self._random, len(self._regions)
        most = max(self._demand(r, d / 96) for r in range(count) for d in range(96))
        numbers, gap_s = itertools.count(1), self._warm_s / len(self._groups)
        if gap_s:
            for turn, group in enumerate(chance.sample(self._groups, len(self._groups))):
                yield self._ask(next(numbers), turn * gap_s, group.home, group)
        now = 0.0
        while (now := now + chance.expovariate(self._rate * most)) < self._seconds:
            region = chance.randrange(count)
            if chance.random() * most < self._demand(region, now / self._seconds):
                group = self._popular(region)
                yield self._ask(next(numbers), self._warm_s + now, region, group)

    def _demand(self, region: int, day: float) -> float:
        return self._regions[region].demand(day) if self._diurnal else 1.0

    def _group(self, home: int) -> _Group:
        ids = self._ids(self._shape.shared_tokens)
        return _Group(ids, _hashes(root_hash(b""), ids), home)

    def _popular(self, region: int) -> _Group:
        near = self._of_region[region] if self._random.random() < _HOME_SHARE else self._groups
        return self._random.choice(near or self._groups)

    def _ask(self, number: int, now: float, region: int, group: _Group) -> Ask:
        shape = self._shape
        own = self._ids(shape.own_tokens)
        # Whole blocks are shared: the question begins where the group's last block ends.
        hashes = (*group.hashes, *_hashes(group.hashes[-1], own))
        drawn = 1 + int(self._random.expovariate(1 / shape.reply_tokens))
        reply = min(8 * shape.reply_tokens, drawn)
        return Ask(number, now, region, group.ids + own, hashes, reply)

    def _ids(self, count: int) -> tuple[int, ...]:
        # Drawn in one go: prompts are most of what a run makes.
        words = self._random.randbytes(2 * count)
        return tuple(
            int.from_bytes(words[at : at + 2], "little") % VOCABULARY_SIZE
            for at in range(0, 2 * count, 2)
        )


def _hashes(parent: bytes, ids: Sequence[int]) -> tuple[bytes, ...]:
    found = []
    for begin in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = block_hash(parent, ids[begin : begin + BLOCK_TOKENS])
        found.append(parent)
    return tuple(found)
