"""What a chat drafts with, as its chain sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Guess:
    """A continuation; empty when nothing is known."""

    ids: tuple[int, ...] = ()
    survival: tuple[float, ...] = ()
    """Per id, the estimated chance that it and all before it are right; never rising."""
    sources: tuple[str, ...] = ()
    """Per id, who guessed it: acceptance is counted by these names, of which there are few."""
    took_s: float = 0.0
    """Time that making them took; 0: next to none."""
    ended: bool = True
    """Whether the drafter knows nothing further; False: it only had no time for more yet."""


class Drafter(Protocol):
    """Guesses at the reply of one chat, from whatever sources."""

    def extend(self, ids: Sequence[int]) -> None:
        """Learn ids that are final."""

    def draft_after(self, tentative_ids: Sequence[int], max_tokens: int) -> Guess:
        """Guess on after the final ids and these; returns at once."""
