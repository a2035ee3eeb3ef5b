"""Whether a chat that was cut off can go on, when to try again, and when to give up (pure).

RUNNING --cut off--> WAITING --sent again--> RESUMING --something of the reply--> RUNNING
   any --an error that trying again does not mend, or no time left--> OVER
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from outrider.backoff import Backoff
from outrider.errors import (
    DrainingError,
    DuplicateSessionError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How a client reconnects. Delays double from the first to the longest."""

    give_up_after_s: float = 30.0
    """Seconds from the loss. The default is the edge's own limit for keeping a chat without its
    client; after it, the chat would be run again from what the client has."""
    first_delay_s: float = 0.05
    max_delay_s: float = 2.0
    attempt_timeout_s: float = 3.0
    """For one handshake."""


class Attempts:
    """Attempts to reconnect after one loss. Times in seconds on the clock of `now`."""

    def __init__(self, policy: ReconnectPolicy) -> None:
        self._policy = policy
        self._lost_at: float | None = None
        self._backoff = Backoff(policy.first_delay_s, policy.max_delay_s)

    @property
    def lost_at(self) -> float | None:
        """When the connection was lost; None while it works."""
        return self._lost_at

    def next_delay(self, now: float, spread: float = 1.0, least_s: float = 0.0) -> float | None:
        """Seconds to wait after a failed try or a lost connection; None: give up. `spread`, in (0,
        1], shortens the wait, so that clients that were lost together do not come together;
        `least_s` is the wait that the peer asked for."""
        if self._lost_at is None:
            self._lost_at = now
            self._backoff.reset()
        wait_s = max(self._backoff.next_s() * spread, least_s)
        return wait_s if now + wait_s < self._lost_at + self._policy.give_up_after_s else None

    def worked(self) -> None:
        """An attempt succeeded."""
        self._lost_at = None


class RecoveryState(Enum):
    """Whether a chat runs, is cut off, or is over."""

    RUNNING = auto()
    WAITING = auto()
    """Cut off; it will be sent again."""
    RESUMING = auto()
    """The request was sent again; nothing of the reply has come since."""
    OVER = auto()


class Recovery:
    """One chat. Verbs take `now` in seconds."""

    def __init__(self, policy: ReconnectPolicy | None) -> None:
        """`policy`: None ends a chat as soon as it is cut off."""
        self._attempts = None if policy is None else Attempts(policy)
        self.state = RecoveryState.RUNNING

    @property
    def cut_at(self) -> float | None:
        """Clock time at which the chat was cut off; None while it runs."""
        return self._attempts.lost_at if self._attempts else None

    def failed(
        self, error: OutriderError, now: float, *, cut_off: bool, has_tokens: bool, spread: float
    ) -> float | None:
        """The connection or stream is gone (`cut_off`), or the edge answered with an error. Returns
        the seconds after which to try again; None: the chat is over.

        A chat that has final tokens is worth continuing if its region was lost. A chat without any
        is left to its caller to send again, who may prefer another edge; but an edge that is being
        stopped usually has a successor. A region that still runs the request for a client it
        believes alive refuses it until it notices, and where many clients were cut off, the edge or
        region that they all come to has no room at first.
        """
        if self.state is RecoveryState.OVER or self._attempts is None:
            self.state = RecoveryState.OVER
            return None
        kinds: tuple[type[OutriderError], ...] = (UnavailableError,)
        if self.state is not RecoveryState.RUNNING:
            kinds = UnavailableError, DuplicateSessionError, OverloadedError
        elif not (cut_off or has_tokens):
            kinds = (DrainingError,)
        delay_s = None
        if isinstance(error, kinds):
            delay_s = self._attempts.next_delay(now, spread, error.retry_delay_ms / 1000)
        self.state = RecoveryState.OVER if delay_s is None else RecoveryState.WAITING
        return delay_s

    def sent(self) -> None:
        """It was sent again."""
        if self.state is RecoveryState.WAITING:
            self.state = RecoveryState.RESUMING

    def heard(self) -> bool:
        """Something of the reply came; whether that ends an interruption. That the edge accepted
        the chat does not: its region may still be lost."""
        was_cut = self.state is RecoveryState.RESUMING
        if was_cut:
            self.state = RecoveryState.RUNNING
        return was_cut

    def progressed(self) -> None:
        """New tokens are final: a later failure counts as a new one."""
        if self._attempts is not None and self.state is RecoveryState.RUNNING:
            self._attempts.worked()

    def end(self) -> None:
        """The chat is over."""
        self.state = RecoveryState.OVER
