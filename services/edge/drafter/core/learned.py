"""What replies taught the drafter, apart for each trust group."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from outrider.speculation.calibration import SourceCalibrations
from outrider.speculation.ngram_store import NgramStatistics, NgramStore
from outrider.speculation.ngrams import NgramPrior
from services.edge.drafter.core.rates import Rates

MAX_ENTRIES: Final = 1 << 18
"""Contexts that the books of all groups remember together: some 40 MB."""
MAX_GROUPS: Final = 1024
"""Of rates, some 4 KB a group."""


class LearnedByGroup:
    """Nothing passes from one group to another: neither words nor how often guesses are right."""

    def __init__(
        self,
        prior: NgramPrior | None = None,
        sources: SourceCalibrations | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        """`prior` and `sources`: what every group begins with, turns of phrase of the model and
        what promises are worth."""
        self._books = NgramStore(prior, max_entries=max_entries, max_salts=max_groups)
        self._sources = sources or SourceCalibrations()
        self._max_rates = 2 * max_groups
        self._rates: OrderedDict[tuple[bytes, bool], Rates] = OrderedDict()

    def of(self, group: bytes, *, are_sampled: bool) -> tuple[NgramStatistics, Rates]:
        """What a group's greedy replies, or its sampled ones, begin with and add to. The empty
        group's is new each time."""
        key = group, are_sampled
        rates = self._rates.get(key) or Rates.starting(self._sources, are_sampled=are_sampled)
        if group:
            self._rates[key] = rates
            self._rates.move_to_end(key)
            if len(self._rates) > self._max_rates:
                self._rates.popitem(last=False)
        return self._books.of(group), rates
