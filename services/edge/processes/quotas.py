"""Quotas of address prefixes and clients, held over all processes of an edge."""

from __future__ import annotations

import math
from typing import Final, TypeVar

from services.edge.limits.quotas import Count, QuotaLimits, Quotas, Rate, too_many, too_much
from services.edge.processes.usage import SharedUsage, named

KeyT = TypeVar("KeyT", str, bytes)

_COUNTS: Final = {count: number for number, count in enumerate(Count)}
_RATES: Final = {rate: number for number, rate in enumerate(Rate)}


class SharedQuotas(Quotas[KeyT]):
    """Quotas shared by all processes, with the same methods. Keys beyond the memory's room are
    forgotten in the same way."""

    def __init__(self, limits: QuotaLimits, usage: SharedUsage, secret: bytes, kind: str) -> None:
        """`kind` separates these keys from others in the same memory."""
        super().__init__(limits)
        self._usage_of_all = usage
        self._secret = secret
        self._kind = kind

    def held(self, key: KeyT, count: Count) -> int:
        """How many a key holds, at all processes."""
        return self._usage_of_all.held(self._named(key), _COUNTS[count])

    def hold(self, key: KeyT, count: Count, now: float) -> None:
        """Count one more; see Quotas.hold."""
        limit = self._limits.counts.get(count)
        if not self._usage_of_all.hold(self._named(key), _COUNTS[count], limit, now):
            raise too_many(count, limit or 0)

    def release(self, key: KeyT, count: Count) -> None:
        """Count one less; see Quotas.release."""
        self._usage_of_all.release(self._named(key), _COUNTS[count])

    def spend(self, key: KeyT, rate: Rate, amount: float, now: float) -> None:
        """Spend an amount; see Quotas.spend."""
        limit = self._limits.rates.get(rate)
        if limit is None:
            return
        wait_s = self._usage_of_all.take(self._named(key), _RATES[rate], limit, amount, now)
        if wait_s:
            raise too_much(rate, wait_s)

    def level(self, key: KeyT, rate: Rate, now: float) -> float:
        """Amount left; see Quotas.level."""
        limit = self._limits.rates.get(rate)
        if limit is None:
            return math.inf
        return self._usage_of_all.level(self._named(key), _RATES[rate], limit, now)

    def _named(self, key: KeyT) -> bytes:
        return named(self._secret, self._kind, key)
