"""How much of a replica's time background sessions may take.

Calls of background sessions alone are timed. The measure is a leaky bucket (ITU-T I.371, annex A):
it fills by the time of each such call and drains at the allowed share, so that over any long time
no more than that share is taken, and a window's worth of it at once after a pause.
"""

from __future__ import annotations

from typing import Final

_WINDOW_S: Final = 60.0
"""A replica that had no background sessions for this long may have this long's share at once."""


class BackgroundShare:
    """Times in seconds on the clock of `now`."""

    def __init__(self, share: float) -> None:
        """`share`: of the model thread's time, 0 (none) to 1."""
        self._share = share
        self._filled_s = 0.0
        self._at = 0.0

    def charge(self, took_s: float, now: float) -> None:
        """A call of background sessions took this long."""
        self._drain(now)
        self._filled_s += took_s

    def wait_s(self, now: float) -> float:
        """Seconds until another session may begin; 0: it may now."""
        if not self._share:
            return _WINDOW_S
        self._drain(now)
        return max(0.0, self._filled_s / self._share - _WINDOW_S)

    def _drain(self, now: float) -> None:
        self._filled_s = max(0.0, self._filled_s - max(0.0, now - self._at) * self._share)
        self._at = max(self._at, now)
