"""What this router placed on one replica and the replica cannot have reported yet (pure).

Counting at dispatch keeps a burst from landing on one replica between two reports (SGLang's
least-load policy and Dynamo's router do likewise). The prompts drain with time at the pace that
was predicted for them, so the estimate decays where no report comes. Replicas serve higher classes
first, so there is an estimate for each: what a new session of that class finds before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CLASSES: Final = (1, 2, 3)
"""LOW, MEDIUM, HIGH; the numbers are the wire's."""


@dataclass(frozen=True, slots=True)
class _Placed:
    at: float
    work_ms: float
    priority: int


class LocalEstimate:
    """Of one replica. Times `now` are seconds."""

    __slots__ = ("_placed", "drained_at")

    def __init__(self) -> None:
        self._placed: dict[int, _Placed] = {}
        self.drained_at = [0.0 for _ in CLASSES]
        """When the prompts placed here are predicted to be prefilled: all, those of MEDIUM and
        HIGH sessions, those of HIGH ones."""

    def num_sessions(self, priority: int) -> int:
        """Sessions placed and not yet reported that go before a new one of a class."""
        return sum(placed.priority >= priority for placed in self._placed.values())

    def put(self, session: int, work_ms: float, priority: int, now: float) -> None:
        """A prompt of so much work was sent."""
        self._placed[session] = _Placed(now, work_ms, priority)
        for entry in range(priority):
            self.drained_at[entry] = max(self.drained_at[entry], now) + work_ms / 1000.0

    def release(self, session: int) -> None:
        """A session ended or moved. One that was reported is not here any more."""
        placed = self._placed.pop(session, None)
        if placed is not None:
            for entry in range(placed.priority):
                self.drained_at[entry] -= placed.work_ms / 1000.0

    def reported(self, reported_at: float, rtt_ms: float) -> None:
        """A report came in: what was sent a round trip or longer ago is in it."""
        counted_until = reported_at - rtt_ms / 1000.0
        for session, placed in list(self._placed.items()):
            if placed.at > counted_until:
                break
            del self._placed[session]
        for entry, priority in enumerate(CLASSES):
            left_ms = _work_ms(self._placed.values(), priority)
            latest = reported_at + left_ms / 1000.0
            self.drained_at[entry] = min(self.drained_at[entry], latest)


def _work_ms(placed: Iterable[_Placed], priority: int) -> float:
    """Of those that go before a new one of a class."""
    return sum(one.work_ms for one in placed if one.priority >= priority)
