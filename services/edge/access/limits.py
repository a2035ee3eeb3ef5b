"""How much a tenant may use: chats, tokens of prompts and replies, chats at once (pure).

Chats and tokens are token buckets that hold a minute's limit and fill in a minute.

    begins      takes one chat, if one is left, and if earlier replies left output tokens
    tokenized   takes the prompt's tokens, if enough are left: no region has computed yet
    committed   takes the reply's tokens, even if not enough are left: a running chat continues,
                and the next ones wait until the bucket is above zero again

Each edge counts its own chats here. If edges share a Redis (services.edge.access.shared_limits), it
counts for all of them, and corrects the levels here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Annotated, Final, TypeAlias

from outrider.bounds import between
from outrider.errors import OverloadedError, RateLimitedError
from outrider.lru_map import LruMap
from services.edge.limits.quotas import RateLimit, TokenBucket

_BUSY_RETRY_MS: Final = 1000
"""When to try again, where another chat has to end first."""
_Limit: TypeAlias = Annotated[int, between(0, 10**9)]
"""0: no limit."""


class Limited(Enum):
    """A limited resource, by its name in errors and headers."""

    REQUESTS = "requests"
    INPUT = "input_tokens"
    OUTPUT = "output_tokens"
    SESSIONS = "sessions"


RATES: Final = (Limited.REQUESTS, Limited.INPUT, Limited.OUTPUT)
"""Limits per minute, in the order in which edges exchange them with Redis."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of one tenant; 0: no limit."""

    requests_per_minute: _Limit = 0
    input_tokens_per_minute: _Limit = 0
    output_tokens_per_minute: _Limit = 0
    max_sessions: _Limit = 0

    def per_minute(self, what: Limited) -> int:
        """The limit of a rate."""
        if what is Limited.REQUESTS:
            return self.requests_per_minute
        if what is Limited.INPUT:
            return self.input_tokens_per_minute
        return self.output_tokens_per_minute


UNLIMITED: Final = TenantLimits()


@dataclass(frozen=True, slots=True)
class RateState:
    """How much of a limit is left."""

    limit: int
    """In a minute, or at once for sessions."""
    remaining: int
    """Never below 0."""
    reset_s: float
    """Time until all of the limit is there again; 0 for sessions."""


RateStates = Mapping[Limited, RateState]
"""States of the limits that a tenant has."""


def refusal(what: Limited, state: RateState, wait_s: float, tenant: str) -> RateLimitedError:
    """The error for a chat that a limit does not let through; `wait_s`: when it would be, 0:
    never."""
    if what is Limited.SESSIONS:
        text = (
            f"tenant {tenant} has {state.limit} chats under way, and no more are for it; try again "
            "when one has ended"
        )
        retry_ms = _BUSY_RETRY_MS
    elif not wait_s:
        text = (
            f"the prompt has more tokens than the {state.limit} input tokens that tenant {tenant} "
            "has in a minute; shorten it"
        )
        retry_ms = 0
    else:
        name = what.value.replace("_", " ")
        # Clients that read no header find the time in OpenAI's words.
        text = (
            f"tenant {tenant} has used its {state.limit} {name} of a minute; try again in "
            f"{wait_s:.1f}s"
        )
        retry_ms = max(1, math.ceil(wait_s * 1000))
    metadata = {
        "limited": what.value,
        "limit": str(state.limit),
        "remaining": str(state.remaining),
        "reset_ms": str(math.ceil(state.reset_s * 1000)),
    }
    return RateLimitedError(text, retry_delay_ms=retry_ms, metadata=metadata)


class RateWords(Enum):
    """API whose header names are used."""

    OPENAI = auto()
    ANTHROPIC = auto()


def rate_headers(states: RateStates, words: RateWords, unix_s: float) -> dict[str, str]:
    """HTTP headers with the remaining limits. `tokens` is whichever of prompt and reply tokens is
    closer to its limit; `unix_s` is the present time."""
    named = {
        what.value.replace("_", "-"): state
        for what, state in states.items()
        if what is not Limited.SESSIONS
    }
    tokens = [states[what] for what in (Limited.INPUT, Limited.OUTPUT) if what in states]
    if tokens:
        named["tokens"] = min(tokens, key=lambda state: state.remaining / state.limit)
    headers: dict[str, str] = {}
    for name, state in named.items():
        if words is RateWords.ANTHROPIC:
            headers |= _anthropic_headers(name, state, unix_s)
        else:
            headers |= _openai_headers(name, state)
    return headers


def rate_header_names(words: RateWords) -> tuple[str, ...]:
    """All headers that `rate_headers` may make."""
    state = RateState(1, 1, 0.0)
    return tuple(rate_headers(dict.fromkeys(RATES, state), words, 0.0))


def _anthropic_headers(name: str, state: RateState, unix_s: float) -> dict[str, str]:
    """Headers in the form of the Anthropic API: the reset is a time of day (RFC 3339), in whole
    seconds."""
    reset = datetime.fromtimestamp(math.ceil(unix_s + state.reset_s), UTC)
    return {
        f"anthropic-ratelimit-{name}-limit": str(state.limit),
        f"anthropic-ratelimit-{name}-remaining": str(state.remaining),
        f"anthropic-ratelimit-{name}-reset": f"{reset:%Y-%m-%dT%H:%M:%SZ}",
    }


def _openai_headers(name: str, state: RateState) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": str(state.limit),
        f"x-ratelimit-remaining-{name}": str(state.remaining),
        f"x-ratelimit-reset-{name}": f"{state.reset_s:.3f}s",
    }


class TenantUsage:
    """Usage of one tenant at this edge. Times in seconds on the clock of `now`."""

    def __init__(self, tenant: str, limits: TenantLimits, now: float) -> None:
        self.tenant = tenant
        self.limits = limits
        self.num_sessions = 0
        self._buckets: dict[Limited, TokenBucket] = {}
        for what in RATES:
            if per_minute := limits.per_minute(what):
                self._buckets[what] = TokenBucket(RateLimit(per_minute / 60, per_minute), now)

    def begin(self, now: float) -> None:
        """A chat begins, until `end`. Raises RateLimitedError."""
        if 0 < self.limits.max_sessions <= self.num_sessions:
            raise self._refusal(Limited.SESSIONS, 0.0, now)
        for what, least in ((Limited.INPUT, 1.0), (Limited.OUTPUT, 1.0)):
            bucket = self._buckets.get(what)
            if bucket is not None and bucket.level(now) < least:
                raise self._refusal(what, bucket.wait_s(least, now), now)
        self._take(Limited.REQUESTS, 1.0, now)
        self.num_sessions += 1

    def end(self) -> None:
        """A chat that had begun has ended."""
        self.num_sessions -= 1

    def take_input(self, num_tokens: int, now: float) -> None:
        """The tokens of a prompt that no region computes yet. Raises RateLimitedError."""
        limit = self.limits.input_tokens_per_minute
        if limit and num_tokens > limit:
            raise self._refusal(Limited.INPUT, 0.0, now)
        self._take(Limited.INPUT, num_tokens, now)

    def charge(self, what: Limited, num_tokens: int, now: float) -> None:
        """Tokens that were computed already."""
        bucket = self._buckets.get(what)
        if bucket is not None:
            bucket.charge(num_tokens, now)

    def correct(self, levels: Mapping[Limited, float], now: float) -> None:
        """Set the levels left for all edges together."""
        for what, level in levels.items():
            if what in self._buckets:
                self._buckets[what].correct(level, now)

    def states(self, now: float) -> dict[Limited, RateState]:
        """State of each limit, with the remaining amount."""
        found = {what: self._state(what, now) for what in self._buckets}
        if self.limits.max_sessions:
            found[Limited.SESSIONS] = self._state(Limited.SESSIONS, now)
        return found

    def refused(self, what: Limited, wait_s: float, now: float) -> RateLimitedError:
        """The error for a chat that the limits of all edges together do not let through."""
        return self._refusal(what, wait_s, now)

    def _take(self, what: Limited, amount: float, now: float) -> None:
        bucket = self._buckets.get(what)
        if bucket is not None and not bucket.take(amount, now):
            raise self._refusal(what, bucket.wait_s(amount, now), now)

    def _refusal(self, what: Limited, wait_s: float, now: float) -> RateLimitedError:
        return refusal(what, self._state(what, now), wait_s, self.tenant)

    def _state(self, what: Limited, now: float) -> RateState:
        bucket = self._buckets.get(what)
        if bucket is None:
            limit = self.limits.max_sessions
            return RateState(limit, max(0, limit - self.num_sessions), 0.0)
        level = bucket.level(now)
        burst = bucket.limit.burst
        return RateState(int(burst), max(0, int(level)), bucket.wait_s(burst, now))


class Usage:
    """Usage of all tenants with limits at this edge."""

    def __init__(self, max_tenants: int = 4096) -> None:
        """`max_tenants`: beyond it the longest unused one without a chat is forgotten."""
        self._tenants: LruMap[str, TenantUsage] = LruMap(max_tenants)

    def __len__(self) -> int:
        return len(self._tenants)

    def of(self, tenant: str, limits: TenantLimits, now: float) -> TenantUsage:
        """Usage of a tenant with these limits. Raises OverloadedError if there is no room for
        another tenant."""
        usage = self._tenants.get(tenant)
        if usage is None:
            self._make_room()
            usage = TenantUsage(tenant, limits, now)
            self._tenants.put(tenant, usage)
        elif usage.limits != limits:
            # They were changed while the edge runs; what was used before does not count.
            num_sessions = usage.num_sessions
            usage = TenantUsage(tenant, limits, now)
            usage.num_sessions = num_sessions
            self._tenants.put(tenant, usage)
        return usage

    def known(self, tenant: str) -> TenantUsage | None:
        """Usage of a tenant, whatever its present limits; None: it is not remembered."""
        return self._tenants.peek(tenant)

    def _make_room(self) -> None:
        tenants = self._tenants
        if tenants.is_full and tenants.pop_first(lambda usage: not usage.num_sessions) is None:
            raise OverloadedError(
                "too many tenants have running chats; try again", retry_delay_ms=_BUSY_RETRY_MS
            )
