"""One chat on its way to ids, and the ways there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from outrider.errors import OutriderError
from outrider.models.chat import Message
from outrider.tokenization.front.encoder import Draft, Scope
from outrider.tokenization.front.line import Kind

Outcome: TypeAlias = tuple[int, ...] | OutriderError
"""The prompt ids, or what made them impossible."""


class Layer(StrEnum):
    """Where a prompt was tokenized."""

    CACHE = "cache"
    """In the event loop: every text of it was known."""
    INLINE = "inline"
    """In the event loop: what was not known is so short that handing it over costs more."""
    THREAD = "thread"
    PROCESS = "process"
    """In another process, because the threads had enough to do."""
    LOCAL = "local"
    """In the event loop, as the last resort."""
    REFUSED = "refused"
    """Nowhere: too many wait."""
    BAILED = "bailed"
    """Nowhere: its tokens were only to save time."""


@dataclass(slots=True, eq=False)
class Job:
    """One chat on its way to ids."""

    messages: Sequence[Message]
    answer: Callable[[Outcome], None]
    kind: Kind
    loop: asyncio.AbstractEventLoop
    begun_at: float
    """Seconds of the front's clock."""
    scope: Scope = None
    """Whose it is."""
    draft: Draft | None = None
    """What the event loop found in the cache already."""
    is_cancelled: bool = False

    def deliver(self, outcome: Outcome) -> None:
        """In the event loop: hand the outcome over, if it is still wanted."""
        if not self.is_cancelled:
            self.answer(outcome)
