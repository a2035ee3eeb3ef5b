"""When to try again, and when to give up (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How a client gets over a lost connection. Delays double from the first to the longest."""

    give_up_after_s: float = 30.0
    """From the loss on. As long as an edge keeps a chat for its client, unless it is set up
    otherwise; after that the chat is run on from what the client has."""
    first_delay_s: float = 0.05
    max_delay_s: float = 2.0
    attempt_timeout_s: float = 3.0
    """For one handshake."""


class Backoff:
    """The tries after one loss. Times in seconds on the clock of `now`."""

    def __init__(self, policy: ReconnectPolicy) -> None:
        self._policy = policy
        self._lost_at: float | None = None
        self._delay_s = 0.0

    @property
    def lost_at(self) -> float | None:
        """Since when nothing works; None while it does."""
        return self._lost_at

    def next_delay(self, now: float, spread: float = 1.0, least_s: float = 0.0) -> float | None:
        """A try failed, or the connection was lost: wait so long, None to give up. `spread`, in
        (0, 1], shortens the wait, so that clients that were lost together do not come together;
        `least_s` is what the peer asked for."""
        if self._lost_at is None:
            self._lost_at = now
            self._delay_s = self._policy.first_delay_s
        else:
            self._delay_s = min(2 * self._delay_s, self._policy.max_delay_s)
        wait_s = max(self._delay_s * spread, least_s)
        return wait_s if now + wait_s < self._lost_at + self._policy.give_up_after_s else None

    def worked(self) -> None:
        """It goes on."""
        self._lost_at = None
