"""The health of one peer as a table of (signal, state) -> state. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from outrider.peers.quarantine import Quarantine, QuarantinePolicy


class PeerState(IntEnum):
    """Health; the numbers are the wire's (`router.proto`)."""

    CONNECTING = 1
    """The first attempt to reach it is under way."""
    READY = 2
    """Its stream is up, it answers, it takes sessions."""
    SUSPECT = 3
    """Its stream is up but it is silent: no new sessions until it is heard."""
    DOWN = 4
    """No stream; reconnecting goes on."""
    DRAINING = 5
    """It answers but takes no new sessions; those it has go on."""
    QUARANTINED = 6
    """It answers but failed too often of late: no new sessions until its pause is over."""
    TRIAL = 7
    """Its pause is over: one new session at a time, until one goes well (half-open)."""


class Signal(Enum):
    """What can be observed of a peer."""

    CONNECTED = "connected"
    LOST = "lost"
    SERVING = "serving"
    """It says that it serves."""
    NOT_SERVING = "not_serving"
    """It says that it stops."""
    SILENT = "silent"
    """A probe got no answer, or what it sends at intervals does not come."""
    TIMEOUT = "timeout"
    """It was in its state for as long as may be."""
    CONDEMNED = "condemned"
    """It failed too often."""
    CLEARED = "cleared"
    """A trial went well."""


_C, _R, _S, _D, _G, _Q, _T = PeerState

_SAME: Final = {state: state for state in PeerState}

TRANSITIONS: Final[dict[Signal, dict[PeerState, PeerState]]] = {
    Signal.CONNECTED: {_C: _R, _R: _R, _S: _R, _D: _R, _G: _R, _Q: _Q, _T: _T},
    Signal.LOST: dict.fromkeys(PeerState, _D),
    # Health is heard over the same channel before the stream is up and after it broke: only the
    # stream itself brings a peer out of CONNECTING and DOWN.
    Signal.SERVING: _SAME | {_S: _R, _G: _R},
    Signal.NOT_SERVING: _SAME | {_R: _G, _S: _G, _Q: _G, _T: _G},
    Signal.SILENT: _SAME | {_R: _S, _G: _S, _Q: _S, _T: _S},
    Signal.TIMEOUT: _SAME | {_C: _D, _S: _D, _Q: _T},
    Signal.CONDEMNED: _SAME | {_R: _Q, _T: _Q},
    Signal.CLEARED: _SAME | {_T: _R},
}
"""One thing is not in the table: what leads to READY leads a peer whose quarantine is not over to
QUARANTINED, wherever it was meanwhile."""

UP: Final = frozenset(PeerState) - {_C, _D}
"""Its stream is up."""


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What the operator decides."""

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
    """One peer. `signal` alone changes its state."""

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
        return self.state is _R or (self.state is _T and self.trial is None)

    def signal(self, signal: Signal, now: float) -> Change | None:
        """Apply one observation; the change, if it is one."""
        before, after = self.state, TRANSITIONS[signal][self.state]
        if signal is Signal.CLEARED and before is _T:
            self.quarantine.clear(now)
        if after is _R and self.quarantine.is_active:
            after = TRANSITIONS[Signal.CONDEMNED][after]
        if after is before:
            return None
        self.state, self.since, self.trial = after, now, None
        return Change(before, after)

    def fail(self, now: float) -> bool:
        """Count a failure that is the peer's own; whether it should be condemned for it."""
        return self.quarantine.fail(now) or self.state is _T

    def condemn(self, now: float) -> Change | None:
        """Put it into quarantine, for longer each time."""
        self.quarantine.begin(now)
        return self.signal(Signal.CONDEMNED, now)

    def begin_session(self, session: int) -> None:
        """A session goes to it; the trial, if it is on one."""
        if self.state is _T and self.trial is None:
            self.trial = session

    def end_session(self, session: int) -> None:
        """A session left it. A trial without a verdict leaves room for another."""
        if self.trial == session:
            self.trial = None

    def expire(self, now: float) -> Change | None:
        """What passes with time alone."""
        return self.signal(Signal.TIMEOUT, now) if self._is_late(now) else None

    def _is_late(self, now: float) -> bool:
        if self.state is _Q:
            return now >= self.quarantine.until
        limit_s = {_C: self._policy.connect_s, _S: self._policy.suspect_s}.get(self.state)
        return limit_s is not None and now - self.since >= limit_s
