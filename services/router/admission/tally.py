"""What admission did, counted for whoever exports it. Pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final

from outrider.session_types import Priority

MAX_WAITS: Final = 4096
"""Waits kept until they are taken; of more the last ones."""


def _waits() -> deque[tuple[Priority, float]]:
    return deque(maxlen=MAX_WAITS)


@dataclass(slots=True)
class Tally:
    """Counts since the last `take`."""

    refused: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By class and cause."""
    spilled: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By region left, region taken and cause."""
    waits_ms: deque[tuple[Priority, float]] = field(default_factory=_waits)
    """Every session placed: its class and its wait in the queue, 0 for none."""
    sessions: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """By tenant's label and outcome: `admitted` or `refused`."""
    tokens: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Tokens used, by tenant's label."""
    costs_nanos: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Billionths of the currency charged for them, by tenant's label and model."""

    def take(self) -> Tally:
        """The counts; from now on they are zero."""
        taken = replace(self)
        self.refused, self.spilled, self.waits_ms = Counter(), Counter(), _waits()
        self.sessions, self.tokens, self.costs_nanos = Counter(), Counter(), Counter()
        return taken
