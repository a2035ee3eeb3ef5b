"""Enforces the limits of tenants for chats: at this edge, and shared with all edges of a region
through Redis, or with all processes of an edge.

Nothing here blocks. With Redis a chat's request is sent in the background; if the answer is late,
this edge's own counts decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from outrider.errors import OutriderError, RateLimitedError
from services.edge.access.identity import Identity
from services.edge.access.limits import (
    UNLIMITED,
    Limited,
    RateStates,
    TenantLimits,
    TenantUsage,
    Usage,
)
from services.edge.access.shared_limits import Answered, SharedAnswer, SharedAsk

Decided = Callable[[OutriderError | None], None]
"""Called once: with the error if a chat must not continue, else None."""


class Allowance(Protocol):
    """The limits of one chat."""

    def ask(self, num_input_tokens: int, decided: Decided) -> None:
        """Whether a chat with a prompt of so many tokens may go to a region; `decided` is called
        in this turn of the loop or a later one. 0: the region counts them."""
        ...

    def charge(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Charge tokens that were computed."""
        ...

    def close(self) -> None:
        """The chat has ended."""
        ...


class LimitSharing(Protocol):
    """Shared counts: services.edge.access.shared_limits, or services.edge.processes.limits."""

    def ask(self, ask: SharedAsk, answered: Answered) -> None:
        """Ask for a chat; `answered` is called once: with None if this edge has to decide."""
        ...

    def charge(
        self, tenant: str, limits: TenantLimits, input_tokens: int, output_tokens: int
    ) -> None:
        """A tenant has used so much."""
        ...

    def sessions(self, tenant: str, limits: TenantLimits, num_sessions: int) -> None:
        """A tenant has so many chats under way here."""
        ...

    async def close(self) -> None:
        """Send the remaining counts, and end."""
        ...


class _Unlimited:
    """For chats whose tenant has no limits."""

    def ask(self, num_input_tokens: int, decided: Decided) -> None:
        """Allowed at once."""
        decided(None)

    def charge(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Not counted."""

    def close(self) -> None:
        """Do nothing: no place is held."""


UNLIMITED_CHAT: Final = _Unlimited()


class Limiter:
    """Limits of one edge. Single-threaded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds that never go back."""
        self._clock = clock
        self._usage = Usage()
        self._shared: LimitSharing | None = None
        """None: this edge counts for itself."""

    def share(self, shared: LimitSharing | None) -> None:
        """Count with others from now on: the edges of the region, or processes of this edge."""
        self._shared = shared

    def begin(self, identity: Identity) -> Allowance:
        """A chat begins. Raises RateLimitedError."""
        if identity.limits == UNLIMITED:
            return UNLIMITED_CHAT
        now = self._clock()
        self._usage.of(identity.tenant, identity.limits, now).begin(now)
        return _Limited(self, identity.tenant)

    def states(self, identity: Identity) -> RateStates:
        """State of each limit of the tenant, with the remaining amount; empty without limits."""
        if identity.limits == UNLIMITED:
            return {}
        now = self._clock()
        # An identity from before the limits were changed does not bring the old ones back.
        usage = self._usage.known(identity.tenant)
        return (usage or TenantUsage(identity.tenant, identity.limits, now)).states(now)

    def is_used_up(self, identity: Identity) -> bool:
        """Whether a chat of the tenant would be refused now: nothing is computed ahead for it."""
        states = self.states(identity).values()
        return any(not state.remaining for state in states)

    # For the allowances.

    def take_input(self, tenant: str, num_tokens: int) -> None:
        """Raises RateLimitedError."""
        now = self._clock()
        self._under_way(tenant).take_input(num_tokens, now)

    def ask_shared(self, tenant: str, num_input_tokens: int, decided: Decided) -> None:
        """Ask for all edges together, where they share a Redis."""
        if self._shared is None:
            decided(None)
            return

        def answered(answer: SharedAnswer | None) -> None:
            decided(None if answer is None else self._answered(tenant, answer))

        usage = self._under_way(tenant)
        self._shared.ask(
            SharedAsk(tenant, usage.limits, usage.num_sessions, 1, num_input_tokens), answered
        )

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Tokens that were computed."""
        now = self._clock()
        usage = self._under_way(tenant)
        usage.charge(Limited.INPUT, input_tokens, now)
        usage.charge(Limited.OUTPUT, output_tokens, now)
        if self._shared is not None:
            self._shared.charge(tenant, usage.limits, input_tokens, output_tokens)

    def ended(self, tenant: str) -> None:
        """A chat has ended."""
        usage = self._under_way(tenant)
        usage.end()
        if self._shared is not None:
            self._shared.sessions(tenant, usage.limits, usage.num_sessions)

    def _answered(self, tenant: str, answer: SharedAnswer) -> RateLimitedError | None:
        usage = self._usage.known(tenant)
        if usage is None:  # its chats ended before the answer came
            return None
        now = self._clock()
        usage.correct(answer.levels, now)
        if answer.refused is None:
            return None
        return usage.refused(answer.refused, answer.wait_s, now)

    def _under_way(self, tenant: str) -> TenantUsage:
        """Usage of a tenant with a running chat. Its limits are those of the chat that began last,
        so that a chat from before a change does not bring the old ones back."""
        usage = self._usage.known(tenant)
        assert usage is not None, "a tenant with a chat under way is not forgotten"
        return usage


class _Limited:
    """For a chat whose tenant has limits."""

    def __init__(self, limiter: Limiter, tenant: str) -> None:
        self._limiter = limiter
        self._tenant = tenant
        self._is_closed = False

    def ask(self, num_input_tokens: int, decided: Decided) -> None:
        """Ask whether the chat may continue; see Allowance.ask."""
        if self._is_closed:  # nothing is computed for it any more
            decided(None)
            return
        try:
            if num_input_tokens:
                self._limiter.take_input(self._tenant, num_input_tokens)
        except RateLimitedError as error:
            decided(error)
            return
        self._limiter.ask_shared(self._tenant, num_input_tokens, decided)

    def charge(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Charge tokens; see Allowance.charge."""
        if not self._is_closed:
            self._limiter.charge(self._tenant, input_tokens, output_tokens)

    def close(self) -> None:
        """End the chat; see Allowance.close."""
        if not self._is_closed:
            self._is_closed = True
            self._limiter.ended(self._tenant)
