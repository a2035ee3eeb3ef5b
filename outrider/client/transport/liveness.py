"""Whether the edge can still be heard, and what to do when it cannot (pure).

    HEARD --silence--> ASKED --silence--> MOVED --silence--> DEAD

A ping first; then another way to the same edge (QUIC migration from a new socket, RFC 9000, section
9): the address of a client changes without notice when its network or a NAT in between does. If
that is silent too, the connection is given up, and another one is to take its place. Whatever is
heard leads back to HEARD. A client that was late itself (stopped, or its loop held) did not listen:
before it judges the edge it reads what has come meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class State(Enum):
    """What is known of the edge."""

    HEARD = auto()
    ASKED = auto()
    MOVED = auto()
    DEAD = auto()


class Verdict(Enum):
    """What to do now."""

    WAIT = auto()
    PING = auto()
    MIGRATE = auto()
    GIVE_UP = auto()


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long silence is borne."""

    busy_s: float = 1.0
    """While chats wait for something. Above the pause between the tokens of a busy region."""
    idle_s: float = 10.0
    """Otherwise. Edges close connections from which nothing comes for half a minute."""
    answer_s: float = 1.5
    """For a ping; the transport repeats what is lost within this time. Whoever answers later is
    left without harm: chats go on where they were."""
    late_s: float = 0.25
    """A check that comes later than this was held up by this process: it finds nothing..."""
    settle_s: float = 0.5
    """...and is made again so much later."""


_NEXT = {
    State.HEARD: (State.ASKED, Verdict.PING),
    State.ASKED: (State.MOVED, Verdict.MIGRATE),
    State.MOVED: (State.DEAD, Verdict.GIVE_UP),
    State.DEAD: (State.DEAD, Verdict.WAIT),
}


class Liveness:
    """Life signs of one connection. Times in seconds on the clock of `now`."""

    def __init__(self, limits: LivenessLimits, now: float) -> None:
        self._limits = limits
        self._since = now
        self.state = State.HEARD

    def heard(self, now: float) -> None:
        """The edge sent something that nobody else could have."""
        if self.state is not State.DEAD:
            self.state, self._since = State.HEARD, now

    def moved(self, now: float) -> None:
        """Another way was taken, for another reason."""
        if self.state is not State.DEAD:
            self.state, self._since = State.MOVED, now

    def next_check(self, busy: bool) -> float | None:
        """When to call `check`; None when nothing can be done any more."""
        if self.state is State.DEAD:
            return None
        if self.state is not State.HEARD:
            return self._since + self._limits.answer_s
        return self._since + (self._limits.busy_s if busy else self._limits.idle_s)

    def check(self, now: float, busy: bool, late_s: float = 0.0) -> Verdict:
        """What to do, which then counts as done. `late_s`: how much later than it was meant to this
        process got round to checking."""
        due = self.next_check(busy)
        if due is None or now < due:
            return Verdict.WAIT
        if late_s > self._limits.late_s:
            self._since += now - due + self._limits.settle_s
            return Verdict.WAIT
        self.state, verdict = _NEXT[self.state]
        self._since = now
        return verdict
