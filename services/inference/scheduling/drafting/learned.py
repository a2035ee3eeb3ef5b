"""What replies taught, apart for each trust group."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from outrider.speculation.ngram_store import MAX_SALTS, NgramStatistics, NgramStore
from outrider.speculation.ngrams import NgramPrior
from services.inference.scheduling.drafting.sources import Acceptance

_EDGE_PRIOR: Final = 0.6


class Learned(NamedTuple):
    """One group's."""

    phrases: NgramStatistics
    edge: Acceptance
    """Of the drafts that edges send."""


class LearnedByGroup:
    """Found by cache salt, which names a group. Nothing passes from one to another."""

    def __init__(self, prior: NgramPrior | None = None) -> None:
        """`prior`: what the model often says, whoever asks."""
        self._books = NgramStore(prior)
        self._edges: OrderedDict[bytes, Acceptance] = OrderedDict()

    def of(self, salt: bytes) -> Learned:
        """The group's own; an empty salt is nobody's, and what is learned goes with the reply."""
        return Learned(self._books.of(salt), self._edge(salt))

    def _edge(self, salt: bytes) -> Acceptance:
        found = self._edges.get(salt)
        if found is None:
            found = Acceptance(_EDGE_PRIOR)
        if salt:
            self._edges[salt] = found
            self._edges.move_to_end(salt)
            if len(self._edges) > MAX_SALTS:
                self._edges.popitem(last=False)
        return found
