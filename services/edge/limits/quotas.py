"""How much each of many keys may use at a time, and per second (pure).

A key is an address prefix (services.edge.limits.listener) or a client's identity. Rates are token
buckets: they fill at a rate, up to a burst (as in RFC 2697, without its colours).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from outrider.errors import OverloadedError
from outrider.lru_map import LruMap

KeyT = TypeVar("KeyT", bound=Hashable)
_BUSY_RETRY_MS: Final = 1000
"""When to try again, where others have to release something first."""


class Count(Enum):
    """Kinds of things that are held and released."""

    CONNECTIONS = "connections"
    STREAMS = "open streams"
    CHATS = "chats under way"


class Rate(Enum):
    """Kinds of things that are spent."""

    HANDSHAKES = "handshakes"
    TYPED_BYTES = "bytes of typed text"
    PREFILL_TOKENS = "tokens computed ahead"
    AHEAD_TOKENS = "tokens of replies begun ahead"
    FLOODS = "connections closed for too many frames"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`per_s` on average, and `burst` at once after a pause."""

    per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """Limits of one key; counts and rates that are not named are not limited."""

    counts: Mapping[Count, int] = field(default_factory=dict)
    rates: Mapping[Rate, RateLimit] = field(default_factory=dict)
    max_keys: int = 65_536
    """Keys that are remembered. Beyond it keys that hold nothing are dropped, the longest unused
    first; if all hold something, a new one is refused."""


class TokenBucket:
    """One rate of one key. Times in seconds on the clock of `now`."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: RateLimit, now: float) -> None:
        self.limit = limit
        self._level = limit.burst
        self._at = now

    def take(self, amount: float, now: float) -> bool:
        """Take an amount; False, and nothing is taken, if less is left. The level never exceeds the
        burst."""
        self._fill(now)
        if amount > self._level:
            return False
        self._level -= amount
        return True

    def charge(self, amount: float, now: float) -> None:
        """Charge an amount that can no longer be refused; the level may become negative."""
        self._fill(now)
        self._level -= amount

    def level(self, now: float) -> float:
        """Amount left."""
        self._fill(now)
        return self._level

    def correct(self, level: float, now: float) -> None:
        """Set the level, as counted for several processes or edges."""
        self._level = min(level, self.limit.burst)
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """In how many seconds there will be so much, or a whole burst if that is less."""
        self._fill(now)
        return max(0.0, min(amount, self.limit.burst) - self._level) / self.limit.per_s

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self.limit.burst, self._level + (now - self._at) * self.limit.per_s)
            self._at = now


def too_many(count: Count, held: int) -> OverloadedError:
    """The error for one more when a key already holds its limit."""
    return OverloadedError(
        f"this client or its network already has {held} {count.value}; try again when one has "
        "ended",
        retry_delay_ms=_BUSY_RETRY_MS,
    )


def too_much(rate: Rate, wait_s: float) -> OverloadedError:
    """The error for what a key may spend in `wait_s` only."""
    return OverloadedError(
        f"too many {rate.value} came from here lately; try again in {wait_s:.1f}s",
        retry_delay_ms=max(1, round(wait_s * 1000)),
    )


class _KeyUsage:
    __slots__ = ("buckets", "counts")

    def __init__(self) -> None:
        self.counts: dict[Count, int] = {}
        self.buckets: dict[Rate, TokenBucket] = {}


class Quotas(Generic[KeyT]):
    """Present use of each key. Every operation takes constant time."""

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._idle: LruMap[KeyT, _KeyUsage] = LruMap(limits.max_keys)
        """Keys that hold nothing, the longest unused first."""
        self._busy: dict[KeyT, _KeyUsage] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def held(self, key: KeyT, count: Count) -> int:
        """How many a key holds."""
        usage = self._busy.get(key)
        return 0 if usage is None else usage.counts.get(count, 0)

    def hold(self, key: KeyT, count: Count, now: float) -> None:
        """One more, until `release`. Raises OverloadedError."""
        usage, limit = self._usage(key), self._limits.counts.get(count)
        num = usage.counts.get(count, 0)
        if limit is not None and num >= limit:
            raise too_many(count, num)
        usage.counts[count] = num + 1
        if self._idle.pop(key) is not None:
            self._busy[key] = usage

    def release(self, key: KeyT, count: Count) -> None:
        """One of those held is given back."""
        usage = self._busy[key]
        usage.counts[count] -= 1
        if not usage.counts[count]:
            del usage.counts[count]
        if not usage.counts:
            self._idle.put(key, self._busy.pop(key))

    def spend(self, key: KeyT, rate: Rate, amount: float, now: float) -> None:
        """Spend an amount. Raises OverloadedError, with the time until enough is left."""
        limit = self._limits.rates.get(rate)
        if limit is None:
            return
        usage = self._usage(key)
        bucket = usage.buckets.get(rate)
        if bucket is None:
            bucket = usage.buckets[rate] = TokenBucket(limit, now)
        if not bucket.take(amount, now):
            raise too_much(rate, bucket.wait_s(amount, now))

    def level(self, key: KeyT, rate: Rate, now: float) -> float:
        """How much a key could spend now; infinite where the rate is not limited."""
        limit = self._limits.rates.get(rate)
        if limit is None:
            return math.inf
        usage = self._busy.get(key) or self._idle.peek(key)
        bucket = None if usage is None else usage.buckets.get(rate)
        return limit.burst if bucket is None else bucket.level(now)

    def _usage(self, key: KeyT) -> _KeyUsage:
        usage = self._busy.get(key) or self._idle.get(key)
        if usage is not None:
            return usage
        if len(self) >= self._limits.max_keys:
            if not len(self._idle):
                raise OverloadedError(
                    "too many other clients are being served; try again",
                    retry_delay_ms=_BUSY_RETRY_MS,
                )
            self._idle.drop_oldest()
        usage = _KeyUsage()
        self._idle.put(key, usage)
        return usage
