"""Round trips between edge and replica, measured on frames that travel anyway."""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

_MAX_NUMBER = 127
"""Numbers go round below 128, where they take one byte on the wire."""
_MAX_PENDING = 64
_WINDOW = 32
_RECENT = 5
_SHIFT = 1.5
_SHIFT_S = 0.005
"""A recent median this many times, and at least so much, away from that before: another path."""


class RoundTrip:
    """Numbers frames and times the return of their numbers, less the time that the far end held
    them (as RFC 9002, section 5.3, takes the delay of an acknowledgement off)."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._last_number = 0
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self.regime = 0
        """Counts changes of the path: what was learned on the one before does not hold."""

    @property
    def median_s(self) -> float | None:
        """The usual one lately; None before the first."""
        return median(self._samples) if self._samples else None

    def number(self, now: float) -> int:
        """The number for a frame that is sent now."""
        self._last_number = self._last_number % _MAX_NUMBER + 1
        self._sent.pop(self._last_number, None)
        self._sent[self._last_number] = now
        if len(self._sent) > _MAX_PENDING:
            self._sent.popitem(last=False)
        return self._last_number

    def returned(self, number: int, held_s: float, now: float) -> None:
        """A number came back. One that is unknown says nothing: its frame may be long ago."""
        sent_at = self._sent.get(number)
        if sent_at is None:
            return
        while self._sent and number in self._sent:
            self._sent.popitem(last=False)  # frames before it were never answered
        self._samples.append(max(0.0, now - sent_at - held_s))
        self._watch()

    def _watch(self) -> None:
        if len(self._samples) < 2 * _RECENT:
            return
        samples = list(self._samples)
        before, recent = median(samples[:-_RECENT]), median(samples[-_RECENT:])
        low, high = sorted((before, recent))
        if high - low > _SHIFT_S and high > low * _SHIFT:
            news = [s for s in samples[-_RECENT:] if abs(s - recent) < abs(s - before)]
            self._samples = deque(news, maxlen=_WINDOW)
            self.regime += 1
