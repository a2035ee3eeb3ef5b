"""Statistics of a fleet's recent sessions: TTFT, tokens, drafts; and the latest moves. Pure.

`outrider status` shows them to operators; no decision depends on them. The latest `MAX_KEPT`
sessions within `WINDOW_S` count for each model and region, so memory is bounded at any load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from outrider.lru_map import LruMap
from services.router.autoscale.advisor import FleetKey

WINDOW_S: Final = 60.0
MAX_KEPT: Final = 2000
"""Sessions of one fleet."""
MAX_MOVES: Final = 32
"""The latest moves of sessions that are kept."""
MAX_FLEETS: Final = 1000
"""Most fleets kept; the one whose last session is oldest is dropped first."""


class Reply(NamedTuple):
    """A session that ended."""

    completion_tokens: int
    draft_tokens: int
    accepted_tokens: int


class Recent(NamedTuple):
    """Statistics of one fleet within the window."""

    num_first_tokens: int = 0
    ttft_p50_ms: float = 0.0
    """From the session's open at this router to its first token; 0 without any."""
    ttft_p95_ms: float = 0.0
    num_ended: int = 0
    totals: Reply = Reply(0, 0, 0)
    """Sums over those that ended."""


class Move(NamedTuple):
    """A session that continued on another replica."""

    left: str
    """Name of the replica that had it before."""
    replica: str
    reason: str
    """Why it left, as the `reason` of an error."""
    pause_ms: float
    """Without a token, from the loss to the first one of the other replica."""
    at: float
    """Time of that token."""


class _Fleet:
    def __init__(self) -> None:
        self.ttfts: deque[tuple[float, float]] = deque(maxlen=MAX_KEPT)
        self.replies: deque[tuple[float, Reply]] = deque(maxlen=MAX_KEPT)


class RecentReplies:
    """By fleet. Verbs take `now` in seconds."""

    def __init__(self) -> None:
        self._fleets: LruMap[FleetKey, _Fleet] = LruMap(MAX_FLEETS)
        self._moves: deque[Move] = deque(maxlen=MAX_MOVES)

    def first_token(self, fleet: FleetKey, ttft_ms: float, now: float) -> None:
        """A session had its first token."""
        self._fleet(fleet).ttfts.append((now, ttft_ms))

    def ended(self, fleet: FleetKey, reply: Reply, now: float) -> None:
        """A session ended by itself."""
        self._fleet(fleet).replies.append((now, reply))

    def moved(self, move: Move) -> None:
        """A session continued elsewhere."""
        self._moves.append(move)

    @property
    def moves(self) -> list[Move]:
        """The latest ones, newest first."""
        return list(reversed(self._moves))

    def of(self, fleet: FleetKey, now: float) -> Recent:
        """Statistics of a fleet within the window that ends at `now`."""
        found = self._fleets.peek(fleet)
        if found is None:
            return Recent()
        since = now - WINDOW_S
        ttfts = sorted(ttft_ms for at, ttft_ms in found.ttfts if at > since)
        replies = [reply for at, reply in found.replies if at > since]
        return Recent(
            num_first_tokens=len(ttfts),
            ttft_p50_ms=_percentile(ttfts, 0.5),
            ttft_p95_ms=_percentile(ttfts, 0.95),
            num_ended=len(replies),
            totals=_sum(replies),
        )

    def _fleet(self, key: FleetKey) -> _Fleet:
        found = self._fleets.get(key)
        if found is None:
            found = _Fleet()
            self._fleets.put(key, found)
        return found


def _percentile(ordered: list[float], share: float) -> float:
    """The least value that at least this share does not exceed (nearest rank); 0 of none."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _sum(replies: Iterable[Reply]) -> Reply:
    columns = list(zip(*replies, strict=True))
    return Reply(*(sum(column) for column in columns)) if columns else Reply(0, 0, 0)
