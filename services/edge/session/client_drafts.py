"""The drafts of a client that drafts by means of its own, as they come over the wire (pure).

Messages of an epoch extend each other, and a higher epoch begins another chain. Each side is ahead
of the other: the client drafts behind tokens that are wrong without its knowing yet, and the edge
has final tokens that the client has not seen. So what comes is compared with what is final, and
what is of no use is ignored and counted; it is no error.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from outrider.speculation.verification import common_prefix_length
from services.edge.session.events import DrafterReport

SOURCE: Final = "client"
"""The name of such drafts where acceptance is counted by source."""


class ClientDrafts:
    """The newest chain of one client, and the reply as far as the client has been told.

    Invariant: the chain begins where the final tokens end, or is empty and ended before.
    """

    def __init__(self, max_ahead: int, first: int = 0) -> None:
        """`max_ahead`: most drafts kept ahead of what is final. `first`: tokens of the reply that
        the client brings."""
        self._max_ahead = max_ahead
        self._first = first
        self._final = array("I")
        """The reply's tokens from `first` on."""
        self._chain: list[int] = []
        """Drafts of the epoch that are not final yet."""
        self._begin = first
        """Position of the chain's first draft."""
        self._is_open = True
        """Whether the epoch can be extended."""
        self.epoch = 0
        """The newest one that has come."""
        self.num_taken = 0
        """Drafts that were of use when they came."""
        self.num_ignored = 0
        """The others."""

    @property
    def upto(self) -> int:
        """Number of final tokens."""
        return self._first + len(self._final)

    def take(self, epoch: int, base: int, ids: Sequence[int]) -> DrafterReport | None:
        """A message with drafts came; returns the whole chain if there is more of it now."""
        if epoch > self.epoch:
            self.epoch, self._begin, self._chain = epoch, base, []
            self._is_open = self._first <= base <= self.upto
        if epoch < self.epoch or not self._is_open or base != self._begin + len(self._chain):
            self.num_ignored += len(ids)
            return None
        kept = ids[: max(0, self.upto + self._max_ahead - base)]
        self._chain.extend(kept)
        # Behind what is left out nothing can follow.
        self._is_open = len(kept) == len(ids)
        self._compare()
        num_useful = min(len(kept), len(self._chain))
        self.num_taken += num_useful
        self.num_ignored += len(ids) - num_useful
        return self._report() if num_useful else None

    def committed(self, ids: Sequence[int]) -> int:
        """These tokens became final; returns how many of them, from the first on, the chain had in
        their places."""
        accepted = common_prefix_length(self._chain, ids)
        self._final.extend(ids)
        self._compare()
        return accepted

    def _compare(self) -> None:
        """Drop the part of the chain that is final; if it was wrong, all of it, and the epoch."""
        final = self._final[self._begin - self._first :]
        num = min(len(final), len(self._chain))
        if self._chain[:num] != final[:num].tolist():
            self._chain, self._is_open = [], False
        else:
            self._begin += num
            self._chain = self._chain[num:]

    def _report(self) -> DrafterReport:
        ids = tuple(self._chain)
        return DrafterReport(self._begin, ids, (1.0,) * len(ids), (SOURCE,) * len(ids))
