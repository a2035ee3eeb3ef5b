"""What this router placed on one replica and the replica cannot have reported yet (pure).

Counting at dispatch keeps a burst from landing on one replica between two reports (SGLang's
least-load policy and Dynamo's router do likewise). The prompts drain with time at the pace that
was predicted for them, so the estimate decays where no report comes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Placed:
    at: float
    work_ms: float


class LocalEstimate:
    """Of one replica. Times `now` are seconds."""

    __slots__ = ("_placed", "drained_at")

    def __init__(self) -> None:
        self._placed: dict[int, _Placed] = {}
        self.drained_at = 0.0
        """When the prompts placed here are predicted to be prefilled."""

    def __len__(self) -> int:
        """Sessions placed and not yet reported."""
        return len(self._placed)

    def put(self, session: int, work_ms: float, now: float) -> None:
        """A prompt of so much work was sent."""
        self._placed[session] = _Placed(now, work_ms)
        self.drained_at = max(self.drained_at, now) + work_ms / 1000.0

    def release(self, session: int) -> None:
        """A session ended or moved. One that was reported is not here any more."""
        placed = self._placed.pop(session, None)
        if placed is not None:
            self.drained_at -= placed.work_ms / 1000.0

    def reported(self, reported_at: float, rtt_ms: float) -> None:
        """A report came in: what was sent a round trip or longer ago is in it."""
        counted_until = reported_at - rtt_ms / 1000.0
        for session, placed in list(self._placed.items()):
            if placed.at > counted_until:
                break
            del self._placed[session]
        left_ms = sum(placed.work_ms for placed in self._placed.values())
        self.drained_at = min(self.drained_at, reported_at + left_ms / 1000.0)
