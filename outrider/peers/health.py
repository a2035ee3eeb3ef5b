"""The health of one peer: a table TRANSITIONS[state][signal], and a circuit breaker. Pure: no I/O,
no clock.

The breaker (Nygard, "Release It!", 2007, chapter 5) counts failures within a window and puts a peer
that answers but fails into quarantine; the pauses between trials double, as those between attempts
to connect do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from outrider.backoff import Backoff
from outrider.bounds import PositiveFloat, PositiveInt


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """When a failing peer is quarantined, and for how long."""

    max_failures: PositiveInt = 3
    """Failures within `window_s` that put a peer into quarantine."""
    window_s: PositiveFloat = 30.0
    first_s: PositiveFloat = 2.0
    """The first pause before a trial; each trial that fails doubles it."""
    max_s: PositiveFloat = 60.0
    """The longest pause before a trial."""


class Quarantine:
    """The failures of one peer, and what follows from them."""

    def __init__(self, policy: QuarantinePolicy) -> None:
        self._policy = policy
        self._failed_at: deque[float] = deque(maxlen=policy.max_failures)
        self._backoff = Backoff(policy.first_s, policy.max_s)
        self._cleared_at: float | None = None
        self.is_active = False
        """Whether the peer gets nothing but trials, should it be reachable."""
        self.until = 0.0
        """When the next trial may begin."""
        self.count = 0
        """How often it was put there."""

    def fail(self, now: float) -> bool:
        """Count a failure; whether there have been too many of late."""
        self._failed_at.append(now)
        oldest = self._failed_at[0]
        is_full = len(self._failed_at) == self._policy.max_failures
        return is_full and now - oldest <= self._policy.window_s

    def begin(self, now: float) -> None:
        """Pause; longer than the last time if the peer was cleared only just, or never."""
        cleared_at = self._cleared_at
        window_s = self._policy.window_s
        if not self.is_active and (cleared_at is None or now - cleared_at > window_s):
            self._backoff.reset()
        self.is_active = True
        self.until = now + self._backoff.next_s()
        self.count += 1

    def clear(self, now: float) -> None:
        """A trial went well."""
        self.is_active = False
        self._cleared_at = now
        self._failed_at.clear()


class PeerState(IntEnum):
    """Health; the numbers are the wire's (`router.proto`)."""

    CONNECTING = 1
    """The first attempt to reach it is under way."""
    READY = 2
    """Its stream is up, it answers, and it takes sessions."""
    SUSPECT = 3
    """Its stream is up but it is silent: no new sessions until it is heard."""
    DOWN = 4
    """No stream; reconnecting continues."""
    DRAINING = 5
    """It answers but takes no new sessions; running ones continue."""
    QUARANTINED = 6
    """It answers but failed too often lately: no new sessions until its pause is over."""
    TRIAL = 7
    """Its pause is over: one new session at a time, until one succeeds (half-open)."""

    @property
    def is_trouble(self) -> bool:
        """Whether operators should be alerted: the peer serves no sessions, though it was not
        stopped."""
        return self in (PeerState.SUSPECT, PeerState.DOWN, PeerState.QUARANTINED)


class Signal(Enum):
    """An observation about a peer."""

    CONNECTED = "connected"
    LOST = "lost"
    SERVING = "serving"
    """Its health service reports SERVING."""
    NOT_SERVING = "not_serving"
    """Its health service reports NOT_SERVING."""
    SILENT = "silent"
    """A probe was not answered, or its periodic messages stopped."""
    TIMEOUT = "timeout"
    """The longest time in its state has passed."""
    CONDEMNED = "condemned"
    """It failed too often."""
    CLEARED = "cleared"
    """A trial went well."""


_CHANGES: Final[dict[PeerState, dict[Signal, PeerState]]] = {
    # Health is heard over the same channel before the stream is up and after it broke: only the
    # stream itself brings a peer out of CONNECTING and DOWN.
    PeerState.CONNECTING: {
        Signal.CONNECTED: PeerState.READY,
        Signal.LOST: PeerState.DOWN,
        Signal.TIMEOUT: PeerState.DOWN,
    },
    PeerState.READY: {
        Signal.LOST: PeerState.DOWN,
        Signal.NOT_SERVING: PeerState.DRAINING,
        Signal.SILENT: PeerState.SUSPECT,
        Signal.CONDEMNED: PeerState.QUARANTINED,
    },
    PeerState.SUSPECT: {
        Signal.CONNECTED: PeerState.READY,
        Signal.LOST: PeerState.DOWN,
        Signal.SERVING: PeerState.READY,
        Signal.NOT_SERVING: PeerState.DRAINING,
        Signal.TIMEOUT: PeerState.DOWN,
    },
    PeerState.DOWN: {
        Signal.CONNECTED: PeerState.READY,
    },
    PeerState.DRAINING: {
        Signal.CONNECTED: PeerState.READY,
        Signal.LOST: PeerState.DOWN,
        Signal.SERVING: PeerState.READY,
        Signal.SILENT: PeerState.SUSPECT,
    },
    PeerState.QUARANTINED: {
        Signal.LOST: PeerState.DOWN,
        Signal.NOT_SERVING: PeerState.DRAINING,
        Signal.SILENT: PeerState.SUSPECT,
        Signal.TIMEOUT: PeerState.TRIAL,
    },
    PeerState.TRIAL: {
        Signal.LOST: PeerState.DOWN,
        Signal.NOT_SERVING: PeerState.DRAINING,
        Signal.SILENT: PeerState.SUSPECT,
        Signal.CONDEMNED: PeerState.QUARANTINED,
        Signal.CLEARED: PeerState.READY,
    },
}
"""Signals that are not here leave the state as it is."""

TRANSITIONS: Final[dict[PeerState, dict[Signal, PeerState]]] = {
    state: {signal: changes.get(signal, state) for signal in Signal}
    for state, changes in _CHANGES.items()
}
"""One rule is not in the table: a signal that leads to READY leads to QUARANTINED while the peer's
quarantine lasts, whatever its state in between."""

UP: Final = frozenset(PeerState) - {PeerState.CONNECTING, PeerState.DOWN}
"""States in which the stream is up."""


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Timeouts and quarantine of peers."""

    connect_s: float = 5.0
    """The first attempt to reach a peer may take so long before it is DOWN."""
    suspect_s: float = 5.0
    """A SUSPECT peer that stays silent this long is DOWN, and its stream is closed."""
    quarantine: QuarantinePolicy = field(default_factory=QuarantinePolicy)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state."""

    before: PeerState
    after: PeerState


class PeerHealth:
    """One peer. Only `signal` changes its state."""

    def __init__(
        self, policy: HealthPolicy, now: float, state: PeerState = PeerState.CONNECTING
    ) -> None:
        self._policy = policy
        self.state = state
        self.since = now
        """When `state` was entered."""
        self.quarantine = Quarantine(policy.quarantine)
        self.trial: int | None = None
        """The session a TRIAL peer is tried with."""

    @property
    def is_up(self) -> bool:
        """Whether its stream is up."""
        return self.state in UP

    @property
    def takes_sessions(self) -> bool:
        """Whether a new session may go to it now."""
        return self.state is PeerState.READY or (
            self.state is PeerState.TRIAL and self.trial is None
        )

    def signal(self, signal: Signal, now: float) -> Change | None:
        """Apply one observation; the change, if it is one."""
        before = self.state
        after = TRANSITIONS[self.state][signal]
        if signal is Signal.CLEARED and before is PeerState.TRIAL:
            self.quarantine.clear(now)
        if after is PeerState.READY and self.quarantine.is_active:
            after = PeerState.QUARANTINED
        if after is before:
            return None
        self.state = after
        self.since = now
        self.trial = None
        return Change(before, after)

    def fail(self, now: float) -> bool:
        """Count a failure that is the peer's own; whether it should be condemned for it."""
        return self.quarantine.fail(now) or self.state is PeerState.TRIAL

    def condemn(self, now: float) -> Change | None:
        """Put it into quarantine, for longer each time."""
        self.quarantine.begin(now)
        return self.signal(Signal.CONDEMNED, now)

    def begin_session(self, session: int) -> None:
        """A session goes to it; the trial, if it is on one."""
        if self.state is PeerState.TRIAL and self.trial is None:
            self.trial = session

    def end_session(self, session: int) -> None:
        """A session left it. A trial without a verdict leaves room for another."""
        if self.trial == session:
            self.trial = None

    def expire(self, now: float) -> Change | None:
        """Apply timeouts."""
        return self.signal(Signal.TIMEOUT, now) if self._is_late(now) else None

    def _is_late(self, now: float) -> bool:
        if self.state is PeerState.QUARANTINED:
            return now >= self.quarantine.until
        limit_s = {
            PeerState.CONNECTING: self._policy.connect_s,
            PeerState.SUSPECT: self._policy.suspect_s,
        }.get(self.state)
        return limit_s is not None and now - self.since >= limit_s
