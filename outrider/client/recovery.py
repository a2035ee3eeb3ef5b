"""Whether a chat that was cut off can go on, and when to try (pure).

RUNNING --cut off--> WAITING --sent again--> RESUMING --something of the reply--> RUNNING
   any --an error that trying again does not mend, or no time left--> OVER
"""

from __future__ import annotations

from enum import Enum, auto

from outrider.client.transport.backoff import Backoff, ReconnectPolicy
from outrider.errors import (
    DrainingError,
    DuplicateSessionError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)


class State(Enum):
    """Where a chat stands with its edge."""

    RUNNING = auto()
    WAITING = auto()
    """Cut off; it will be sent again."""
    RESUMING = auto()
    """Sent again; nothing of the reply has come since."""
    OVER = auto()


class Recovery:
    """One chat. Verbs take `now` in seconds."""

    def __init__(self, policy: ReconnectPolicy | None) -> None:
        """None: what is cut off is over."""
        self._backoff = None if policy is None else Backoff(policy)
        self.state = State.RUNNING

    @property
    def cut_at(self) -> float | None:
        """When it was cut off; None while it goes on."""
        return self._backoff.lost_at if self._backoff else None

    def failed(
        self, error: OutriderError, now: float, *, cut_off: bool, has_tokens: bool, spread: float
    ) -> float | None:
        """The connection or stream is gone (`cut_off`), or the edge answered with an error: in how
        many seconds to try again, None if the chat is over.

        A chat that has final tokens is worth going on with if its region was lost. One that has
        none is the caller's to send again, who may want to ask elsewhere; but an edge that is being
        stopped has a successor, as a rule. A region that still runs the request for a client it
        believes alive refuses it for as long as it takes to notice, and where many clients were cut
        off, the edge or region that they all come to has no room at first.
        """
        if self.state is State.OVER or self._backoff is None:
            self.state = State.OVER
            return None
        kinds: tuple[type[OutriderError], ...] = (UnavailableError,)
        if self.state is not State.RUNNING:
            kinds = UnavailableError, DuplicateSessionError, OverloadedError
        elif not (cut_off or has_tokens):
            kinds = (DrainingError,)
        delay_s = None
        if isinstance(error, kinds):
            delay_s = self._backoff.next_delay(now, spread, error.retry_delay_ms / 1000)
        self.state = State.OVER if delay_s is None else State.WAITING
        return delay_s

    def sent(self) -> None:
        """It was sent again."""
        if self.state is State.WAITING:
            self.state = State.RESUMING

    def heard(self) -> bool:
        """Something of the reply came; whether that ends an interruption. That the edge accepted
        the chat does not: its region may still be lost."""
        was_cut = self.state is State.RESUMING
        if was_cut:
            self.state = State.RUNNING
        return was_cut

    def progressed(self) -> None:
        """Something new is final: what fails from now on is another failure."""
        if self._backoff is not None and self.state is State.RUNNING:
            self._backoff.worked()

    def end(self) -> None:
        """The chat is over."""
        self.state = State.OVER
