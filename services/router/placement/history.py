"""The latest decisions, for whoever asks why a session went where it went. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from services.router.placement.request import Decision


@dataclass(frozen=True, slots=True)
class Placed:
    """One session that was sent to a replica, without a word of its prompt."""

    request_id: str
    model: str
    prompt_tokens: int
    decision: Decision
    at: float
    """When it was decided, in seconds."""
    decision_ms: float
    """How long that took."""


class History:
    """The last `max_kept` placements."""

    def __init__(self, max_kept: int) -> None:
        self._placed: deque[Placed] = deque(maxlen=max_kept)

    def add(self, placed: Placed) -> None:
        """A session was sent to a replica."""
        self._placed.append(placed)

    def find(self, request_id: str, count: int) -> list[Placed]:
        """At most so many placements of a request, or of any for an empty id, newest first. A
        request that moved has several."""
        return [placed for placed, _ in zip(self._of(request_id), range(count), strict=False)]

    def _of(self, request_id: str) -> Iterator[Placed]:
        return (p for p in reversed(self._placed) if request_id in ("", p.request_id))
