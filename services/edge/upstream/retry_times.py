"""When a replica whose stream was lost may be tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_BACKOFF_S: Final = 1.0
"""Longest wait after the first loss; each further one doubles it."""
MAX_BACKOFF_S: Final = 60.0
"""Nobody waits for such a stream meanwhile: its sessions stay with their routers."""
MAX_PEERS: Final = 256
"""Addresses that are remembered. Of more, those are forgotten that may be tried soonest."""


@dataclass(slots=True)
class _Wait:
    until_s: float
    backoff_s: float
    """Longest wait after the next loss."""


class RetryTimes:
    """By address. Waits double with every stream that ends soon after its attempt; after one that
    lasted for longer than MAX_BACKOFF_S, or so long after the end of a wait, they start at
    FIRST_BACKOFF_S again (exponential backoff)."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def may_try(self, address: str, now: float) -> bool:
        """Whether its wait, if it has one, is over. Times are seconds of one clock."""
        wait = self._waits.get(address)
        return wait is None or now >= wait.until_s

    def lost(self, address: str, now: float, *, lasted_s: float, jitter: float) -> None:
        """Its stream broke, or could not be opened, `lasted_s` after the attempt began. `jitter`,
        in (0, 1], shortens the wait, so that edges do not come back at the same moment."""
        oldest_s = now - MAX_BACKOFF_S
        self._waits = {it: wait for it, wait in self._waits.items() if wait.until_s > oldest_s}
        before = self._waits.pop(address, None)
        backoff_s = before.backoff_s if before else FIRST_BACKOFF_S
        if lasted_s > MAX_BACKOFF_S:
            backoff_s = FIRST_BACKOFF_S
        if len(self._waits) >= MAX_PEERS:
            del self._waits[min(self._waits, key=lambda it: self._waits[it].until_s)]
        doubled_s = min(2.0 * backoff_s, MAX_BACKOFF_S)
        self._waits[address] = _Wait(now + backoff_s * jitter, doubled_s)
