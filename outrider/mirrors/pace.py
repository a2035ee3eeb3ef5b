"""A cap on bytes per second: a token bucket (RFC 2697, section 3, with one bucket). Pure."""

from __future__ import annotations

from typing import Final

LEAST_BURST_BYTES: Final = 1 << 20
"""Least burst after a pause, if the cap allows less per second."""
_BURST_S: Final = 0.25


class BandwidthCap:
    """Computes how long to wait after bytes have passed, so that the next ones keep to the cap.

    One call may overdraw it, for which later calls wait: over any time of t seconds at most rate *
    t + burst bytes pass, plus those of one call.
    """

    def __init__(self, bytes_per_s: float, now: float) -> None:
        """`bytes_per_s` 0: no cap. `now` is in seconds, as everywhere."""
        self._bytes_per_s = bytes_per_s
        self._burst = max(bytes_per_s * _BURST_S, LEAST_BURST_BYTES)
        self._left = self._burst
        self._at = now

    def take(self, num_bytes: int, now: float) -> float:
        """Account for bytes; returns for how many seconds nothing more should pass."""
        if not self._bytes_per_s:
            return 0.0
        earned = max(0.0, now - self._at) * self._bytes_per_s
        self._left = min(self._burst, self._left + earned) - num_bytes
        self._at = max(self._at, now)
        return max(0.0, -self._left / self._bytes_per_s)
