"""How fast the region commits and the edge drafts."""

from __future__ import annotations

from dataclasses import dataclass

_FORGETTING = 0.95
_BELIEF = 4.0
_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """What a commit says of its replica."""

    interval_s: float = 0.0
    """Between the session's commits, smoothed; 0: it did not say."""
    row_s: float = 0.0
    """What one more draft adds to a call."""
    ready_sessions: int = 0
    max_lead: int = 0
    """Most drafts ahead of the commits that the replica keeps; 0: it did not say."""
    overload_level: int = 0
    echo: int = 0
    """The number of the newest drafts since the last commit; 0: there were none."""
    held_s: float = 0.0
    """How long the replica had them."""


NO_PACE = Pace()


class OwnPace:
    """Tokens per commit in which no draft of the edge had a part: what a region finds by itself."""

    def __init__(self, average: OwnPace | None = None) -> None:
        """`average`: of all chats of the edge, where a new one begins."""
        self._average = average
        self._commits = _BELIEF
        self._tokens = _BELIEF * (average.tokens if average is not None else 1.0)

    @property
    def tokens(self) -> float:
        """At least 1."""
        return max(1.0, self._tokens / self._commits)

    def observe(self, num_tokens: int) -> None:
        """Such a commit came."""
        self._tokens = self._tokens * _FORGETTING + num_tokens
        self._commits = self._commits * _FORGETTING + 1.0
        if self._average is not None:
            self._average.observe(num_tokens)


class PaceBook:
    """Keeps the region's and the edge's pace of one chat. Times in seconds."""

    def __init__(self, average: OwnPace | None = None) -> None:
        """`average`: of what regions find by themselves in the edge's chats."""
        self._own = OwnPace(average)
        self._draft_time_s = self._num_drafts = 0.0
        self._num_rows = 0.0
        self._interval_s = 0.0
        self.row_s = 0.0

    @property
    def interval_s(self) -> float:
        """Between commits, without the time of drafts in them; 0 before the first that tells."""
        return max(self._interval_s - self._num_rows * self.row_s, self._interval_s / 2)

    @property
    def own_tokens(self) -> float:
        """Tokens per commit in which no draft of the edge had a part."""
        return self._own.tokens

    @property
    def draft_s(self) -> float:
        """Time per draft of the edge; 0 before the first."""
        return self._draft_time_s / self._num_drafts if self._num_drafts else 0.0

    def drafted(self, count: int, took_s: float) -> None:
        """The edge made so many drafts in this time."""
        self._draft_time_s = self._draft_time_s * _FORGETTING + took_s
        self._num_drafts = self._num_drafts * _FORGETTING + count

    def committed(self, pace: Pace, num_tokens: int, *, on_its_own: bool, by_drafts: bool) -> None:
        """A commit came; `on_its_own`: no draft of the edge was in its call, `by_drafts`: some
        proved right."""
        self._interval_s = pace.interval_s or self._interval_s
        self.row_s = pace.row_s or self.row_s
        rows = num_tokens - 1 if by_drafts else 0
        self._num_rows += _SMOOTHING * (rows - self._num_rows)
        if on_its_own:
            self._own.observe(num_tokens)
