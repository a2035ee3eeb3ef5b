"""What happened in the last while, in a few numbers. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

NUM_SLICES: Final = 12


@dataclass(slots=True)
class _Slice:
    """A part of the window."""

    began_at: float
    num_requests: int = 0
    num_late: int = 0
    utilization: float = 0.0
    num_looks: int = 0


class Window:
    """Requests and utilisation over the last `window_s` seconds, give or take one slice."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / NUM_SLICES
        self._window_s = window_s
        self._slices: deque[_Slice] = deque()

    def request(self, is_late: bool, now: float) -> None:
        """A request had its first token, or was refused."""
        found = self._at(now)
        found.num_requests += 1
        found.num_late += is_late

    def look(self, utilization: float, now: float) -> None:
        """The utilisation at this moment."""
        found = self._at(now)
        found.utilization += utilization
        found.num_looks += 1

    def late(self, now: float) -> tuple[float, int]:
        """Share of late requests, and how many requests there were."""
        self._forget(now)
        num = sum(part.num_requests for part in self._slices)
        return (sum(part.num_late for part in self._slices) / num if num else 0.0), num

    def utilization(self, now: float) -> float:
        """Mean of the looks."""
        self._forget(now)
        num = sum(part.num_looks for part in self._slices)
        return sum(part.utilization for part in self._slices) / num if num else 0.0

    def peak(self, now: float) -> float:
        """The busiest slice's mean."""
        self._forget(now)
        means = (part.utilization / part.num_looks for part in self._slices if part.num_looks)
        return max(means, default=0.0)

    def _at(self, now: float) -> _Slice:
        if not self._slices or now - self._slices[-1].began_at >= self._slice_s:
            self._slices.append(_Slice(now))
            self._forget(now)
        return self._slices[-1]

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0].began_at >= self._window_s:
            self._slices.popleft()
