"""Detects a dead path to the edge, and says what to do about it (pure).

    HEARD --silence--> ASKED --silence--> MOVED --silence--> DEAD

A ping first; then another path to the same edge (QUIC migration from a new socket, RFC 9000,
section 9): the address of a client changes without notice when its network or a NAT in between
does. If that path is silent too, the connection is given up for a new one. Any packet leads back to
HEARD. A client that stalled itself (stopped, or its event loop blocked) reads what has arrived
meanwhile before it decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class LinkState(Enum):
    """How long the edge has been silent; names of the steps above."""

    HEARD = auto()
    ASKED = auto()
    MOVED = auto()
    DEAD = auto()


class LinkAction(Enum):
    """Next step for a connection."""

    WAIT = auto()
    PING = auto()
    MIGRATE = auto()
    GIVE_UP = auto()


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long silence is tolerated, in seconds."""

    busy_s: float = 1.0
    """Longest silence while chats wait for something. More than the pause between the tokens of a
    busy region."""
    idle_s: float = 10.0
    """Otherwise. Edges close connections from which nothing comes for half a minute."""
    answer_s: float = 1.5
    """Wait for a ping's answer; the transport repeats lost packets within this time. Giving up an
    edge that answers later does no harm: its chats continue on the next connection."""
    late_s: float = 0.25
    """A check that runs later than this after it was due was delayed by this process: it decides
    nothing."""
    settle_s: float = 0.5
    """Wait before a check that decided nothing is repeated."""


_TRANSITIONS = {
    LinkState.HEARD: (LinkState.ASKED, LinkAction.PING),
    LinkState.ASKED: (LinkState.MOVED, LinkAction.MIGRATE),
    LinkState.MOVED: (LinkState.DEAD, LinkAction.GIVE_UP),
    LinkState.DEAD: (LinkState.DEAD, LinkAction.WAIT),
}


class Liveness:
    """Liveness of one connection. Times in seconds on the clock of `now`."""

    def __init__(self, limits: LivenessLimits, now: float) -> None:
        self._limits = limits
        self._since = now
        self.state = LinkState.HEARD

    def heard(self, now: float) -> None:
        """A packet arrived that only the edge can have sent."""
        if self.state is not LinkState.DEAD:
            self.state = LinkState.HEARD
            self._since = now

    def moved(self, now: float) -> None:
        """The connection migrated for another reason."""
        if self.state is not LinkState.DEAD:
            self.state = LinkState.MOVED
            self._since = now

    def next_check(self, busy: bool) -> float | None:
        """When to call `check`; None once the connection is given up."""
        if self.state is LinkState.DEAD:
            return None
        if self.state is not LinkState.HEARD:
            return self._since + self._limits.answer_s
        return self._since + (self._limits.busy_s if busy else self._limits.idle_s)

    def check(self, now: float, busy: bool, late_s: float = 0.0) -> LinkAction:
        """The step that is due now; it counts as taken. `late_s`: delay of this call behind its
        planned time."""
        due = self.next_check(busy)
        if due is None or now < due:
            return LinkAction.WAIT
        if late_s > self._limits.late_s:
            self._since += now - due + self._limits.settle_s
            return LinkAction.WAIT
        self.state, action = _TRANSITIONS[self.state]
        self._since = now
        return action
