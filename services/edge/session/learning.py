"""Statistics that an edge learns from the chats of one model, per trust group (pure).

They hold how often drafts were right and, unless a drafter process learns it, which tokens often
follow which in the group's replies. From these even a model without a draft model gets drafts
beyond copies of each chat's own text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outrider.speculation.calibration import SourceCalibrations
from outrider.speculation.learnt import NOTHING, Learnt, Restore, nothing
from outrider.speculation.ngram_store import NgramStore
from outrider.speculation.ngrams import NgramPrior
from services.edge.session.acceptance import MAX_GROUPS, Averages, GroupAverages
from services.edge.session.draft_sources import PHRASE_SOURCE, CopyDrafter, DrafterNeeds

MAX_ENTRIES = 1 << 18
"""Contexts of all groups of a model together: some 40 MB."""
_SHIPPED_AS: Final = {CopyDrafter.SOURCE: "copy", PHRASE_SOURCE: "suffix"}
"""Names in files of calibrations by source."""


class EdgeLearning:
    """One model's. Nothing passes from one group to another."""

    def __init__(
        self,
        max_context_tokens: int,
        prior: NgramPrior | None = None,
        shipped: SourceCalibrations | None = None,
        *,
        is_drafted_for: Callable[[], bool] = lambda: False,
        restore: Restore = nothing,
        max_entries: int = MAX_ENTRIES,
        max_groups: int = MAX_GROUPS,
    ) -> None:
        """`prior` and `shipped`: statistics that every group begins with. `is_drafted_for`: whether
        a drafter process learns the n-grams; chats that begin while it does copy their own text
        alone. `restore`: gives a group's kept statistics."""
        own = None if shipped is None else _of_edge(shipped)
        self._max_context_tokens = max_context_tokens
        self._is_drafted_for = is_drafted_for
        self._restore = restore
        self._averages = GroupAverages(own, max_groups, restore)
        self._ngrams = NgramStore(
            prior, max_entries=max_entries, max_salts=max_groups, restore=restore
        )

    def averages(self, group: bytes) -> Averages:
        """How often drafts were right in the group's chats."""
        return self._averages.of(group)

    def new_drafter(self, needs: DrafterNeeds) -> CopyDrafter:
        """For one chat of a group."""
        statistics = None if self._is_drafted_for() else self._ngrams.of(needs.group)
        return CopyDrafter(self._max_context_tokens, needs, statistics)

    def version_of(self, group: bytes) -> int:
        """See `learnt.GroupStatistics.version_of`."""
        averages = self._averages.known(group)
        statistics = self._ngrams.known(group)
        chains = averages.acceptance.version if averages is not None else 0
        return chains + (statistics.version if statistics is not None else 0)

    def learnt_of(self, group: bytes) -> Learnt:
        """See `learnt.GroupStatistics.learnt_of`. Statistics that the group does not have in
        memory, such as n-grams while a drafter process learns them, are taken from the kept copy:
        making them anew for this could drop another group's."""
        averages, statistics = self._averages.known(group), self._ngrams.known(group)
        whole = averages is not None and statistics is not None
        kept = NOTHING if whole else self._restore(group)
        learnt = kept if statistics is None else statistics.learnt()
        numbers = dict(kept.numbers) | dict(learnt.numbers)
        if averages is not None:
            numbers |= averages.numbers()
        return Learnt(learnt.tables, numbers)


def _of_edge(shipped: SourceCalibrations) -> SourceCalibrations:
    """Calibrations of the edge's own sources. The drafter process's confidences are calibrated
    already."""
    return SourceCalibrations(
        *(
            {own: kind[name] for own, name in _SHIPPED_AS.items() if name in kind}
            for kind in (shipped.greedy, shipped.sampled)
        )
    )
