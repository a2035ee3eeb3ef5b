"""Drafts copied from the chat itself."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.speculation.suffix_drafter import SuffixDrafter
from services.edge.session.sources.base import Guess


class CopyDrafter:
    """Copies what followed the longest repeated suffix of prompt and reply."""

    SOURCE = "copy"
    """Apart from the drafter's "suffix", which knows turns of phrase too and corrects itself."""

    def __init__(self, max_context: int) -> None:
        """At least the last half of `max_context` tokens is known."""
        self._suffixes = SuffixDrafter(max_context)

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""
        self._suffixes.extend(ids)

    def draft_after(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess:
        """Guess on after the final ids and these."""
        guess = self._suffixes.draft_after(tentative_ids, max_tokens)
        ended = len(guess.ids) < max_tokens
        return Guess(guess.ids, guess.survival, (self.SOURCE,) * len(guess.ids), ended=ended)
