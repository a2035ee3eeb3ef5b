"""How long to wait before a drafter that ended is started again (pure)."""

from __future__ import annotations

from typing import Final

FIRST_WAIT_S: Final = 0.5
MAX_WAIT_S: Final = 30.0


class Restarts:
    """Waits double with every process that ends soon after its start; one that ran for longer than
    MAX_WAIT_S is followed by the shortest wait again."""

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S

    def ended(self, ran_s: float, spread: float = 1.0) -> float:
        """A process ended after so many seconds, or could not be started (0): seconds to wait.
        `spread`, in (0, 1], shortens the wait, so that edges of one host do not start theirs at the
        same moment."""
        if ran_s > MAX_WAIT_S:
            self._wait_s = FIRST_WAIT_S
        wait_s = self._wait_s * spread
        self._wait_s = min(2 * self._wait_s, MAX_WAIT_S)
        return wait_s
