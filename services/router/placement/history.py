"""The latest placements, for `outrider explain`. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from services.router.placement.types import Decision


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """One session that was sent to a replica, without its prompt."""

    request_id: str
    model: str
    prompt_tokens: int
    decision: Decision
    at: float
    """Time of the decision."""
    decision_ms: float
    """Duration of the decision."""


class PlacementHistory:
    """The last `max_kept` placements."""

    def __init__(self, max_kept: int) -> None:
        self._records: deque[PlacementRecord] = deque(maxlen=max_kept)

    def add(self, record: PlacementRecord) -> None:
        """A session was sent to a replica."""
        self._records.append(record)

    def find(self, request_id: str, count: int) -> list[PlacementRecord]:
        """The latest `count` placements of a request, or of all for an empty id, newest first. A
        request that moved has several."""
        return list(islice(self._of(request_id), count))

    def _of(self, request_id: str) -> Iterator[PlacementRecord]:
        return (r for r in reversed(self._records) if request_id in ("", r.request_id))
