"""What became of every request, and what was wrong (pure). Times are time.monotonic(), seconds."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

MAX_KEPT: Final = 50
"""Violations whose words are kept, and faults that are over; of others there is the number."""
_MAX_CHARS: Final = 2000


@dataclass(slots=True)
class FaultSpan:
    """A fault that happened."""

    what: str
    """Kind, and whom it happened to."""
    began_at: float
    ended_at: float | None = None
    """None: it is still there."""


@dataclass(slots=True)
class RequestCounts:
    """Of one kind of request."""

    asked: int = 0
    exact: int = 0
    differ: int = 0
    """Replies other than the expected ones."""
    lost: int = 0
    """Tokens (characters, where no ids are told) that replies are short of."""
    doubled: int = 0
    """The same beyond the expected ones."""
    failed: int = 0
    """Requests that never got their reply."""
    again: Counter[str] = field(default_factory=Counter)
    """By reason: times that a request was sent again."""
    longest_s: float = 0.0
    """From the first sending to the end of the reply."""
    slowest: str = ""
    """The faults while the request ran that took so long."""


class Ledger:
    """Counts of all requests, and the violations."""

    def __init__(self) -> None:
        self.requests: dict[str, RequestCounts] = {}
        self.violations: list[str] = []
        self.num_violations = 0
        self.num_under_way = 0
        self._over: deque[FaultSpan] = deque(maxlen=MAX_KEPT)
        self._active: list[FaultSpan] = []

    def counts(self, kind: str) -> RequestCounts:
        """Of this kind of request."""
        return self.requests.setdefault(kind, RequestCounts())

    def struck(self, what: str, now: float) -> FaultSpan:
        """A fault begins."""
        span = FaultSpan(what, now)
        self._active.append(span)
        return span

    def healed(self, span: FaultSpan, now: float) -> None:
        """It is over."""
        span.ended_at = now
        self._active.remove(span)
        self._over.append(span)

    def faults_since(self, since: float) -> list[str]:
        """What was there at any time from then on."""
        over = [it.what for it in self._over if it.ended_at is None or it.ended_at >= since]
        return over + [f"{it.what} (still there)" for it in self._active]

    def ended(
        self, kind: str, name: str, expected: Reply, got: Reply, began_at: float, now: float
    ) -> None:
        """A reply is whole. `name`: which request it was."""
        counts = self.counts(kind)
        if now - began_at > counts.longest_s:
            counts.longest_s = now - began_at
            counts.slowest = f"{name}; {self._told_since(began_at)}"
        if got == expected:
            counts.exact += 1
            return
        counts.differ += 1
        counts.lost += max(0, expected.length - got.length)
        counts.doubled += max(0, got.length - expected.length)
        self.violation(f"{kind}: {name}\n  expected {expected}\n  received {got}", began_at)

    def failed(self, kind: str, name: str, why: str, began_at: float) -> None:
        """A request never got its reply."""
        self.counts(kind).failed += 1
        self.violation(f"{kind}: {name}\n  {why}", began_at)

    def violation(self, what: str, since: float) -> None:
        """Something that must not be; faults from `since` on are told with it."""
        self.num_violations += 1
        if len(self.violations) < MAX_KEPT:
            self.violations.append(f"{what}\n  {self._told_since(since)}")

    def _told_since(self, since: float) -> str:
        return f"faults meanwhile: {'; '.join(self.faults_since(since)) or 'none'}"


@dataclass(frozen=True, slots=True)
class Reply:
    """A text, and its token ids where they are told."""

    text: str
    ids: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens, or else characters."""
        return len(self.ids) or len(self.text)

    def __str__(self) -> str:
        return f"{self.text[:_MAX_CHARS]!r} {list(self.ids) or ''}"
