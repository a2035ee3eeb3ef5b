"""Stalls of this process, and the time that passed without them. Pure.

A process that was stopped (SIGSTOP, a paused virtual machine, an event loop held by a long
computation) finds every timeout about its peers exceeded, while their answers wait in its buffers.
Peers are therefore judged by a clock that leaves stalls out: silence, timeouts and pauses are what
a process that never stalled would have seen.

A timer ticks every `interval_s`; in between the clock may be observed at any time. Between two
observations at most `max_gap_s` passes on it. After a longer gap it stands still until `settle_s`
of ordinary time were observed, in which the waiting answers are read.

An overloaded loop is not stalled, but late with everything: a peer's answer waits behind thousands
of other events, over several turns of the loop. The ticks then come late as well, and the clock
slows down: after a late tick, at most half an interval passes on it until the next one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StallPolicy:
    """Thresholds for recognizing a stall. Times in seconds."""

    interval_s: float = 0.1
    """From a tick until the next one is due."""
    late_s: float = 0.05
    """A tick that comes this much after it was due is late. As much more than an interval may pass
    on the clock between two ticks."""
    max_gap_s: float = 0.3
    """Observations further apart than this: the process stalled."""
    stop_s: float = 1.0
    """Observations further apart than this: the process was stopped, not merely busy."""
    settle_s: float = 0.5
    """The clock stands still for so long after a stall. After a stall shorter than `stop_s` it does
    so again only once this much time has passed on it: a process that stalls all the time decides
    about its peers later, but does decide."""
    blame_s: float = 2.0
    """Connections that break within this time after a stall are attributed to the stall."""


class StallDetector:
    """Maps a monotonic clock to one without this process's stalls. Never runs backwards."""

    def __init__(self, now: float, policy: StallPolicy | None = None) -> None:
        """The stall-free clock starts at `now`."""
        self._policy = policy or StallPolicy()
        self._observed_at = now
        self._awake_at = now
        self._settling_s = 0.0
        """Time that still has to be observed before the clock continues."""
        self._counted_s = self._policy.settle_s
        """Time on the clock since it last stood still."""
        self._ticked_at = now
        self._until_tick_s = self._policy.interval_s + self._policy.late_s
        """Time that may still pass on the clock until the next tick."""
        self._stalled_at: float | None = None
        self.stalled_s = 0.0
        """Total time left out so far."""

    @property
    def stalled_recently(self) -> bool:
        """Whether the process stalled within the last `blame_s`: a connection that breaks now, or a
        stream that its peer ended unread, is not the peer's failure."""
        stalled_at = self._stalled_at
        return stalled_at is not None and self._awake_at - stalled_at < self._policy.blame_s

    def tick(self, now: float) -> float:
        """Like `observe`, called by the timer."""
        reading = self.observe(now)
        policy = self._policy
        usual_s = policy.interval_s + policy.late_s
        is_late = now - self._ticked_at > usual_s
        self._ticked_at = max(now, self._ticked_at)
        self._until_tick_s = policy.interval_s / 2 if is_late else usual_s
        return reading

    def observe(self, now: float) -> float:
        """The stall-free time at `now`."""
        gap_s = max(0.0, now - self._observed_at)
        self._observed_at = max(now, self._observed_at)
        policy = self._policy
        seen_s = min(gap_s, policy.max_gap_s)
        if gap_s > policy.max_gap_s:
            self._stalled_at = self._awake_at
            if gap_s >= policy.stop_s or self._counted_s >= policy.settle_s:
                self._settling_s = policy.settle_s
                self._counted_s = 0.0
                seen_s = 0.0
        rest_s = min(seen_s, self._settling_s)
        self._settling_s -= rest_s
        counted_s = min(seen_s - rest_s, self._until_tick_s)
        self._until_tick_s -= counted_s
        self._counted_s += counted_s
        self._awake_at += counted_s
        self.stalled_s += gap_s - counted_s
        return self._awake_at
