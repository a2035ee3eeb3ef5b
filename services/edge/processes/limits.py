"""Limits of tenants over all processes of an edge, used if no Redis shares them over all edges.

Methods and rules are those of services.edge.access.shared_limits; answers come immediately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.edge.access.limits import RATES, Limited, TenantLimits
from services.edge.access.shared_limits import Answered, SharedAnswer, SharedAsk
from services.edge.limits.quotas import RateLimit
from services.edge.processes.usage import SharedUsage, named

_KIND: Final = "tenant"
_SESSIONS: Final = 0
"""Number of the count of sessions in the shared memory."""
_MINUTE_S: Final = 60.0


class HostLimits:
    """The limits as seen by one process."""

    def __init__(self, usage: SharedUsage, secret: bytes, clock: Callable[[], float]) -> None:
        """`clock`: CLOCK_MONOTONIC, in seconds."""
        self._usage = usage
        self._secret = secret
        self._clock = clock

    def ask(self, ask: SharedAsk, answered: Answered) -> None:
        """Whether a chat may continue; `answered` is called before this returns."""
        key, limits, now = named(self._secret, _KIND, ask.tenant), ask.limits, self._clock()
        refused, wait_s = self._take(key, ask, now)
        levels = {
            what: self._usage.level(key, number, rate, now)
            for number, what in enumerate(RATES)
            if (rate := _rate(limits, what))
        }
        answered(SharedAnswer(refused, wait_s, levels))

    def charge(
        self, tenant: str, limits: TenantLimits, input_tokens: int, output_tokens: int
    ) -> None:
        """A tenant has used so much."""
        key, now = named(self._secret, _KIND, tenant), self._clock()
        for what, amount in ((Limited.INPUT, input_tokens), (Limited.OUTPUT, output_tokens)):
            if amount and (rate := _rate(limits, what)):
                self._usage.charge(key, RATES.index(what), rate, amount, now)

    def sessions(self, tenant: str, limits: TenantLimits, num_sessions: int) -> None:
        """A tenant has so many chats under way at this process."""
        if limits.max_sessions:
            key = named(self._secret, _KIND, tenant)
            self._usage.set_held(key, _SESSIONS, num_sessions, None, self._clock())

    async def close(self) -> None:
        """Does nothing: no reports are pending."""

    def _take(self, key: bytes, ask: SharedAsk, now: float) -> tuple[Limited | None, float]:
        """Take all that it needs, or nothing: then what does not let it through, and how long."""
        taken: list[tuple[int, RateLimit, int]] = []
        refused, wait_s = None, 0.0
        # Of replies nothing is taken yet, but something has to be left.
        needs = (ask.num_requests, ask.input_tokens, 1)
        for number, (what, amount) in enumerate(zip(RATES, needs, strict=True)):
            if (rate := _rate(ask.limits, what)) is None:
                continue
            if wait_s := self._usage.take(key, number, rate, amount, now):
                refused = what
                break
            taken.append((number, rate, amount))
        most = ask.limits.max_sessions
        if refused is None and most:
            if not self._usage.set_held(key, _SESSIONS, ask.num_sessions, most, now):
                refused = Limited.SESSIONS
        for number, rate, amount in taken:
            if refused is not None or RATES[number] is Limited.OUTPUT:
                self._usage.charge(key, number, rate, -amount, now)
        return refused, wait_s


def _rate(limits: TenantLimits, what: Limited) -> RateLimit | None:
    per_minute = limits.per_minute(what)
    return RateLimit(per_minute / _MINUTE_S, per_minute) if per_minute else None
