"""Times that a chat measures: the region's pace, the edge's own, and the round trip between them.

All times in seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median
from typing import Final

from outrider.session.region import Pace

_DECAY: Final = 0.95
"""Weight that a sum keeps with each new sample."""
_PRIOR_COMMITS: Final = 4.0
"""Commits that the average of earlier chats counts for in a new one."""

_MAX_ECHO: Final = 127
"""Echo numbers start again at 1 after this one: below 128 they take one byte on the wire."""
_MAX_PENDING: Final = 64
_WINDOW: Final = 32
"""Round trips of which the median is taken."""
_RECENT: Final = 5
_PATH_CHANGE_RATIO: Final = 1.5
_PATH_CHANGE_S: Final = 0.005
"""The path has changed when the median of the last `_RECENT` round trips differs from the median
before by this factor and by at least this time."""


class OwnTokensAverage:
    """Mean tokens per commit of a region that drafts by itself, over commits in which no draft of
    the edge had a part."""

    def __init__(self, average: OwnTokensAverage | None = None) -> None:
        """`average`: of all chats of the edge, where a new one begins."""
        self._average = average
        self._commits = _PRIOR_COMMITS
        self._tokens = _PRIOR_COMMITS * (average.tokens if average is not None else 1.0)

    @property
    def tokens(self) -> float:
        """At least 1."""
        return max(1.0, self._tokens / self._commits)

    def numbers(self) -> list[float]:
        """For `restore`."""
        return [self._tokens, self._commits]

    def restore(self, tokens: float, commits: float) -> None:
        """Continue from earlier `numbers`."""
        self._tokens, self._commits = tokens, commits

    def observe(self, num_tokens: int) -> None:
        """Such a commit came."""
        self._tokens = self._tokens * _DECAY + num_tokens
        self._commits = self._commits * _DECAY + 1.0
        if self._average is not None:
            self._average.observe(num_tokens)


class PaceTracker:
    """How fast the region commits and the edge drafts in one chat."""

    def __init__(self, average: OwnTokensAverage | None = None) -> None:
        """`average`: of all chats of the edge."""
        self._own = OwnTokensAverage(average)
        self._draft_time_s = 0.0
        self._num_drafts = 0.0
        self.interval_s = 0.0
        """Seconds between commits, without the time that the edge's drafts add; 0 before the first
        commit that reports it."""
        self.row_s = 0.0
        """Time that one more draft token adds to a call of the model."""

    @property
    def own_tokens(self) -> float:
        """Mean tokens per commit in which no draft of the edge had a part."""
        return self._own.tokens

    @property
    def draft_s(self) -> float:
        """The edge's time per draft token; 0 before the first."""
        return self._draft_time_s / self._num_drafts if self._num_drafts else 0.0

    def drafted(self, count: int, took_s: float) -> None:
        """The edge made `count` drafts in `took_s` seconds."""
        self._draft_time_s = self._draft_time_s * _DECAY + took_s
        self._num_drafts = self._num_drafts * _DECAY + count

    def told(self, pace: Pace) -> None:
        """The replica says how fast it works."""
        self.interval_s = pace.interval_s or self.interval_s
        self.row_s = pace.row_s or self.row_s

    def observe_own(self, num_tokens: int) -> None:
        """A commit came, and no draft of the edge was in its call."""
        self._own.observe(num_tokens)


class RoundTrip:
    """Round trips between edge and replica, measured on frames that travel anyway: each carries a
    number, which the replica returns with the time for which it held it. That time is subtracted
    (as RFC 9002, section 5.3, subtracts the delay of an acknowledgement)."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._last_echo = 0
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self.num_path_changes = 0
        """Path changes so far. Measurements from before a change are dropped."""

    @property
    def median_s(self) -> float | None:
        """Over the last round trips; None before the first."""
        return median(self._samples) if self._samples else None

    def next_echo(self, now: float) -> int:
        """The number for a frame that is sent now."""
        self._last_echo = self._last_echo % _MAX_ECHO + 1
        self._sent.pop(self._last_echo, None)
        self._sent[self._last_echo] = now
        if len(self._sent) > _MAX_PENDING:
            self._sent.popitem(last=False)
        return self._last_echo

    def returned(self, echo: int, ack_delay_s: float, now: float) -> None:
        """A number came back; 0 and numbers that are not pending are ignored."""
        if not echo:
            return
        sent_at = self._sent.get(echo)
        if sent_at is None:
            return
        while self._sent and echo in self._sent:
            self._sent.popitem(last=False)  # frames before it were never answered
        self._samples.append(max(0.0, now - sent_at - ack_delay_s))
        self._detect_path_change()

    def _detect_path_change(self) -> None:
        if len(self._samples) < 2 * _RECENT:
            return
        samples = list(self._samples)
        before, recent = median(samples[:-_RECENT]), median(samples[-_RECENT:])
        low, high = sorted((before, recent))
        if high - low > _PATH_CHANGE_S and high > low * _PATH_CHANGE_RATIO:
            of_new_path = [s for s in samples[-_RECENT:] if abs(s - recent) < abs(s - before)]
            self._samples = deque(of_new_path, maxlen=_WINDOW)
            self.num_path_changes += 1
