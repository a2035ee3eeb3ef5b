"""What one tenant's replies have in common: turns of phrase, and how well guesses do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from outrider.speculation.ngrams import NgramMemory, NgramPrior
from outrider.speculation.survival import (
    MEMORY_BINS,
    PRIOR_BINS,
    Calibration,
    HitRates,
    new_average,
)


class Phrases:
    """Learns from every reply of one tenant, and guesses for all of them."""

    def __init__(self, prior: NgramPrior | None = None) -> None:
        self._memory = NgramMemory()
        self._prior = prior
        self._averages = (new_average(sampled=False), new_average(sampled=True))
        self._calibrations = (Calibration(), Calibration())

    def fresh(self) -> Phrases:
        """Another one with the same prior, and nothing learned."""
        return Phrases(self._prior)

    def average(self, *, sampled: bool) -> HitRates:
        """Hit rates over the replies so far, greedy or sampled."""
        return self._averages[sampled]

    def calibration(self, *, sampled: bool) -> Calibration:
        """Of the chains of greedy replies, or of sampled ones."""
        return self._calibrations[sampled]

    def guesses(self, contexts: Sequence[int]) -> list[tuple[int, int]]:
        """(token, bin of HitRates) of what may follow these contexts (`ngrams.keys`)."""
        found = []
        if (guess := self._memory.find(contexts)) is not None:
            found.append((guess[0], guess[1] + MEMORY_BINS))
        if self._prior is not None and (guess := self._prior.find(contexts)) is not None:
            found.append((guess[0], guess[1] + PRIOR_BINS))
        return found

    def learn(self, contexts: Sequence[int], token: int) -> None:
        """A reply went on with `token`."""
        self._memory.learn(contexts, token)


class PhraseBooks:
    """One Phrases per salt. Nothing passes from one salt to another, not even a hit rate: what a
    session drafts, and so its pace, would tell of the other's text."""

    def __init__(self, prior: NgramPrior | None = None, max_salts: int = 16) -> None:
        """A book that is full takes about 25 MB."""
        self._prior = prior
        self._max_salts = max_salts
        self._books: OrderedDict[bytes, Phrases] = OrderedDict()

    def of(self, salt: bytes) -> Phrases:
        """The salt's own; the one not asked for longest makes room for a new one."""
        book = self._books.get(salt)
        if book is None:
            if len(self._books) >= self._max_salts:
                self._books.popitem(last=False)
            book = self._books[salt] = Phrases(self._prior)
        self._books.move_to_end(salt)
        return book
