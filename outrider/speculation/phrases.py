"""What one trust group's replies have in common: turns of phrase, and how well guesses do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from outrider.speculation.ngrams import NgramMemory, NgramPrior
from outrider.speculation.survival import (
    MEMORY_BINS,
    PRIOR_BINS,
    Calibration,
    HitRates,
    new_average,
)

MAX_ENTRIES: Final = 1 << 20
"""Contexts that all books of a process remember together, some 150 bytes each; one book alone has
at most an eighth of that."""
MAX_BOOKS: Final = 4096
"""An empty one takes 4 KB."""


class Phrases:
    """Learns from every reply of one trust group, and guesses for all of them."""

    def __init__(self, prior: NgramPrior | None = None) -> None:
        self._memory = NgramMemory()
        self._prior = prior
        self._num_counted = 0
        self.grew: Callable[[int], None] | None = None
        """Told by how many entries it grew, since it was last told."""
        self._averages = (new_average(sampled=False), new_average(sampled=True))
        self._calibrations = (Calibration(), Calibration())

    @property
    def num_counted(self) -> int:
        """Contexts that it remembers, as last told by `grew`."""
        return self._num_counted

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

    def count(self) -> None:
        """Some was learned: whoever bounds the memory of all books hears of it."""
        if self.grew is not None:
            before, self._num_counted = self._num_counted, self._memory.num_entries
            self.grew(self._num_counted - before)


class PhraseBooks:
    """One Phrases per trust group. Nothing passes from one group to another, not even a hit rate:
    what a session drafts, and so its pace, would tell of the other's text."""

    def __init__(
        self,
        prior: NgramPrior | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_books: int = MAX_BOOKS,
    ) -> None:
        """`prior`: what every group begins with. Where one of the limits is passed, the books not
        asked for longest are forgotten."""
        self._prior = prior
        self._max_entries = max_entries
        self._max_books = max_books
        self._books: OrderedDict[bytes, Phrases] = OrderedDict()
        self.num_entries = 0
        """Contexts in all books."""

    def __len__(self) -> int:
        return len(self._books)

    def of(self, group: bytes) -> Phrases:
        """The group's own; the empty group's is new each time, and counts for nothing: it goes with
        its reply."""
        if not group:
            return Phrases(self._prior)
        book = self._books.get(group)
        if book is None:
            book = self._books[group] = Phrases(self._prior)
            book.grew = self._grew
        self._books.move_to_end(group)
        self._make_room()
        return book

    def _grew(self, num_entries: int) -> None:
        self.num_entries += num_entries
        self._make_room()

    def _make_room(self) -> None:
        while self.num_entries > self._max_entries or len(self._books) > self._max_books:
            _, oldest = self._books.popitem(last=False)
            oldest.grew = None  # replies under way may still use it
            self.num_entries -= oldest.num_counted
