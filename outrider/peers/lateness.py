"""How much of the time that passed a process was awake for. Pure.

A process that was stopped (SIGSTOP, a paused virtual machine, a loop held by a long computation)
wakes to find every limit about its peers exceeded, while their answers wait in its buffers. Whoever
judges peers therefore reads a clock that stands still meanwhile: silence, timeouts and pauses are
what an awake process would have seen.

The clock is observed again and again. Between two observations no more than `max_gap_s` passes on
it; and after a gap that was longer it stands still until `settle_s` of ordinary time have been
seen, in which what waits in the buffers is read before time may say anything of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatenessPolicy:
    """What counts as late. Times in seconds."""

    interval_s: float = 0.05
    """The clock is observed at least as often."""
    max_gap_s: float = 0.25
    """Two observations further apart than this: the process was late."""
    stop_s: float = 1.0
    """...and further apart than this: it was stopped."""
    settle_s: float = 0.5
    """For so long after it was late the clock stands still. One that is late again and again by
    less than `stop_s` gets no second rest before as much time has passed on the clock: being always
    a bit late may slow the verdicts about peers down, but not put them off for ever."""
    blame_s: float = 2.0
    """For so long after it was late what breaks is taken to have broken for that."""


class Lateness:
    """The awake time of one process: `observe` maps a steady clock to it. Never runs backwards."""

    def __init__(self, now: float, policy: LatenessPolicy | None = None) -> None:
        """The awake clock starts at `now`."""
        self._policy = policy or LatenessPolicy()
        self._observed_at = now
        self._awake_at = now
        self._settling_s = 0.0
        """Time that still has to be seen before the clock goes on."""
        self._counted_s = self._policy.settle_s
        """Time on the clock since it last stood still."""
        self._late_at: float | None = None
        self.late_s = 0.0
        """All of the time that is not on the clock."""

    @property
    def was_late(self) -> bool:
        """Whether the process was late a moment ago: a connection that breaks now, or a stream that
        its peer ended unread, is not the peer's failure."""
        late_at, blame_s = self._late_at, self._policy.blame_s
        return late_at is not None and self._awake_at - late_at < blame_s

    def observe(self, now: float) -> float:
        """The awake time at `now`."""
        gap_s = max(0.0, now - self._observed_at)
        self._observed_at = max(now, self._observed_at)
        policy = self._policy
        seen_s = min(gap_s, policy.max_gap_s)
        if gap_s > policy.max_gap_s:
            self._late_at = self._awake_at
            if gap_s >= policy.stop_s or self._counted_s >= policy.settle_s:
                self._settling_s, self._counted_s = policy.settle_s, 0.0
                seen_s = 0.0
        rest_s = min(seen_s, self._settling_s)
        self._settling_s -= rest_s
        counted_s = seen_s - rest_s
        self._counted_s += counted_s
        self._awake_at += counted_s
        self.late_s += gap_s - counted_s
        return self._awake_at
