"""Who may begin to shake hands (pure).

The address of a first packet may be anybody's. So an edge keeps few handshakes of senders that have
not shown that they receive what is sent to theirs; to further ones it answers with a Retry (RFC
9000, section 8.1.2), which keeps nothing here and costs the client one round trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outrider.errors import OverloadedError
from services.edge.quotas import Count, Quotas, Rate


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Handshakes under way, of all clients together."""

    retry_from_half_open: int = 64
    """From so many on, clients have to prove their address; 0: always."""
    max_half_open: int = 1024
    """The newest are refused: the older ones are nearer to their end, which is a timeout at the
    latest."""
    max_resident_bytes: int = 0
    """Of the process; above it nobody new is let in. 0: no limit."""


class Verdict(Enum):
    """What to do about a first packet."""

    ADMIT = "admitted"
    RETRY = "asked for proof"
    REFUSE_MEMORY = "memory"
    REFUSE_HALF_OPEN = "half-open"
    REFUSE_QUOTA = "quota"


REASONS = {
    Verdict.REFUSE_MEMORY: "this edge has no memory to spare; try again later",
    Verdict.REFUSE_HALF_OPEN: "too many handshakes are under way; try again",
    Verdict.REFUSE_QUOTA: "too many connections from this address; close some, or wait",
}


class Door:
    """Counts handshakes under way. Each key admitted holds one of its connections until `left`."""

    def __init__(self, limits: DoorLimits, quotas: Quotas[str]) -> None:
        self._limits = limits
        self._quotas = quotas
        self.num_half_open = 0

    def knock(self, key: str, *, is_proven: bool, resident_bytes: int, now: float) -> Verdict:
        """A first packet from `key`; `is_proven`: with a good token of a Retry."""
        limits = self._limits
        if 0 < limits.max_resident_bytes < resident_bytes:
            return Verdict.REFUSE_MEMORY
        if not is_proven and self.num_half_open >= limits.retry_from_half_open:
            return Verdict.RETRY
        if self.num_half_open >= limits.max_half_open:
            return Verdict.REFUSE_HALF_OPEN
        try:
            self._quotas.spend(key, Rate.HANDSHAKES, 1, now)
            self._quotas.hold(key, Count.CONNECTIONS, now)
        except OverloadedError:
            # Others may have used up what is this address's, by sending as if from there.
            return Verdict.REFUSE_QUOTA if is_proven else Verdict.RETRY
        self.num_half_open += 1
        return Verdict.ADMIT

    def shook_hands(self) -> None:
        """One of the handshakes is complete, or will never be."""
        self.num_half_open -= 1

    def left(self, key: str) -> None:
        """A connection has ended."""
        self._quotas.release(key, Count.CONNECTIONS)
