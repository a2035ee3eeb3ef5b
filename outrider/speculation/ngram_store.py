"""N-gram statistics of replies, kept apart per cache salt, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from outrider.lru_map import LruMap
from outrider.speculation.calibration import (
    MEMORY_BINS,
    PRIOR_BINS,
    ChainCalibration,
    HitRates,
    new_average,
)
from outrider.speculation.learnt import NOTHING, NUM_ORDERS, Learnt, Restore, nothing
from outrider.speculation.ngrams import NgramMemory, NgramPrior

MAX_ENTRIES: Final = 1 << 20
"""Most contexts remembered for all salts of a process together, some 150 bytes each; a single salt
has at most an eighth of them."""
MAX_SALTS: Final = 4096
"""Statistics without an entry take 4 KB."""


class NgramStatistics:
    """Statistics shared by the replies of one salt: which token follows which, and how often drafts
    are right. Every reply of the salt learns into it and drafts from it."""

    def __init__(self, prior: NgramPrior | None = None, learnt: Learnt = NOTHING) -> None:
        """`learnt`: what was kept of the salt's earlier replies."""
        self._memory = NgramMemory()
        self._memory.restore(learnt.tables)
        self._prior = prior
        self._num_counted = 0
        self.version = 0
        """Tokens learnt since the process began."""
        self.on_growth: Callable[[int], None] | None = None
        """Called by `count` with the number of entries added since the last call."""
        self._averages = (new_average(sampled=False), new_average(sampled=True))
        self._calibrations = (ChainCalibration(), ChainCalibration())
        for name, part in self._named():
            part.restore(learnt.numbers.get(name, ()))

    def _named(self) -> Iterator[tuple[str, HitRates | ChainCalibration]]:
        """Objects with numbers to keep, by name."""
        for kind, average, calibration in zip(
            ("greedy", "sampled"), self._averages, self._calibrations, strict=True
        ):
            yield f"hit_rates.{kind}", average
            yield f"chains.{kind}", calibration

    def learnt(self) -> Learnt:
        """A copy of all of it, to be kept."""
        tables = self._memory.tables(NUM_ORDERS)
        return Learnt(tables, {name: part.numbers() for name, part in self._named()})

    @property
    def num_counted(self) -> int:
        """Contexts remembered, as last passed to `on_growth`."""
        return self._num_counted

    def average(self, *, sampled: bool) -> HitRates:
        """Hit rates over the replies so far, greedy or sampled."""
        return self._averages[sampled]

    def calibration(self, *, sampled: bool) -> ChainCalibration:
        """Calibration of the chains of greedy replies, or of sampled ones."""
        return self._calibrations[sampled]

    def successors(self, contexts: Sequence[int]) -> list[tuple[int, int]]:
        """(token, bin of HitRates) of possible successors of these contexts (`ngrams.keys`)."""
        return self._with_prior(self._memory.find(contexts), contexts)

    def learn(self, contexts: Sequence[int], token: int) -> list[tuple[int, int]]:
        """Learn that `token` followed. Returns what `successors` would have returned before."""
        known = self._memory.learn(contexts, token)
        self.version += 1
        return self._with_prior(known, contexts)

    def _with_prior(
        self, known: tuple[int, int] | None, contexts: Sequence[int]
    ) -> list[tuple[int, int]]:
        found = [] if known is None else [(known[0], known[1] + MEMORY_BINS)]
        if self._prior is not None and (known := self._prior.find(contexts)) is not None:
            found.append((known[0], known[1] + PRIOR_BINS))
        return found

    def count(self) -> None:
        """Report growth to the store, which bounds the memory of all salts."""
        if self.on_growth is not None:
            before, self._num_counted = self._num_counted, self._memory.num_entries
            self.on_growth(self._num_counted - before)


class NgramStore:
    """NgramStatistics by salt. Nothing passes from one salt to another, not even a hit rate: what
    a session drafts, and so its pace, would disclose something of the other's text."""

    def __init__(
        self,
        prior: NgramPrior | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_salts: int = MAX_SALTS,
        restore: Restore = nothing,
    ) -> None:
        """`prior`: what the statistics of every salt begin with; `restore`: what was kept of one.
        Beyond either limit the least recently used statistics are dropped."""
        self._prior = prior
        self._restore = restore
        self._max_entries = max_entries
        self._by_salt: LruMap[bytes, NgramStatistics] = LruMap(max_salts, on_drop=self._dropped)
        self.num_entries = 0
        """Contexts of all salts."""

    def __len__(self) -> int:
        return len(self._by_salt)

    def of(self, salt: bytes) -> NgramStatistics:
        """The salt's own. An empty salt shares with no other session: its statistics are new each
        time, not kept and not counted."""
        if not salt:
            return NgramStatistics(self._prior)
        statistics = self._by_salt.get(salt)
        if statistics is None:
            statistics = NgramStatistics(self._prior, self._restore(salt))
            self._by_salt.put(salt, statistics)
            statistics.on_growth = self._grew
            statistics.count()
        return statistics

    def known(self, salt: bytes) -> NgramStatistics | None:
        """The salt's, if it has some; they count as no more recently used than before."""
        return self._by_salt.peek(salt)

    def _grew(self, num_entries: int) -> None:
        self.num_entries += num_entries
        while self.num_entries > self._max_entries:
            self._by_salt.drop_oldest()

    def _dropped(self, statistics: NgramStatistics) -> None:
        statistics.on_growth = None  # replies under way may still use it
        self.num_entries -= statistics.num_counted
