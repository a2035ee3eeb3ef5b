"""What each tenant may ask for: class, sessions at once, tokens a minute. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import ConfigError, InvalidRequestError, OverloadedError
from outrider.session_types import Priority
from services.router.admission.tenants.bucket import TokenBucket

OTHERS: Final = "*"
"""Name of the entry for tenants that have none of their own; each of them gets these limits."""

TIERS: Final = {
    "premium": Priority.HIGH,
    "standard": Priority.MEDIUM,
    "economy": Priority.LOW,
}
"""The highest class a tenant of the tier is given, whatever it asks for."""

MAX_DELAY_MS: Final = 60_000
_SMOOTHING: Final = 0.2
_FIRST_STAY_S: Final = 1.0
_MAX_IDLE: Final = 4096


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's limits (`[[router.tenants]]`). Raises ConfigError."""

    name: str
    """As the edge names it; "*": every tenant without an entry, each by itself."""
    tier: str = "premium"
    """premium: up to HIGH; standard: up to MEDIUM; economy: LOW. Who asks for no class is MEDIUM,
    or what the tier allows."""
    max_sessions: int = 0
    """Sessions open at once through this router, waiting ones included; 0: no limit."""
    tokens_per_minute: int = 0
    """Tokens of prompts and replies, at this router; a minute's worth may come at once. Sessions
    reserve prompt + max_tokens and give back what they did not use; 0: no limit."""
    weight: float = 1.0
    """Share of the queue, beside other tenants that wait in the same class."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError('A tenant has no name: set it in [[router.tenants]], "*" for all.')
        where = f"of tenant {self.name}"
        if self.tier not in TIERS:
            raise ConfigError(f"tier {where} is {self.tier!r}: use one of {', '.join(TIERS)}.")
        for name in ("max_sessions", "tokens_per_minute"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {where} is {getattr(self, name)}: use 0 for no limit.")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(f"weight {where} is {self.weight}: set it above 0.")


@dataclass(slots=True)
class _Account:
    """What one tenant has open."""

    policy: TenantPolicy
    bucket: TokenBucket | None
    num_sessions: int = 0
    stay_s: float = field(default=_FIRST_STAY_S)
    """How long its sessions last, smoothed."""


class Tenants:
    """Accounts of all tenants. `enter` and `leave` go in pairs."""

    def __init__(self, policies: Iterable[TenantPolicy] = ()) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._others = self._policies.pop(OTHERS, TenantPolicy(OTHERS))
        self._accounts: dict[str, _Account] = {}

    def policy(self, tenant: str) -> TenantPolicy:
        """The limits of a tenant."""
        return self._policies.get(tenant, self._others)

    def label(self, tenant: str) -> str:
        """A tenant's name in metrics: its own if it has an entry, or "*" like all others."""
        return tenant if tenant in self._policies else OTHERS

    def grant(self, tenant: str, asked: Priority | None) -> Priority:
        """The class that a session gets."""
        return min(asked or Priority.MEDIUM, TIERS[self.policy(tenant).tier])

    def enter(self, tenant: str, tokens: int, now: float, *, has_started: bool = False) -> int:
        """Count a session in that may need so many tokens; the number of its reservation.

        One that `has_started` elsewhere has been let in: its tokens are owed, not refused.
        Raises OverloadedError, with the time until there is room, and InvalidRequestError for more
        tokens than the tenant can ever have at once.
        """
        account = self._account(tenant, now)
        self._check_sessions(tenant, account)
        if account.bucket is not None and not has_started:
            _check_tokens(tenant, account.bucket, tokens, now)
        account.num_sessions += 1
        return account.bucket.take(tokens, now) if account.bucket is not None else 0

    def leave(self, tenant: str, number: int, unused: int, stay_s: float, now: float) -> None:
        """A session ended after `stay_s` and did not use that many of its tokens."""
        account = self._accounts[tenant]
        account.num_sessions -= 1
        account.stay_s += (stay_s - account.stay_s) * _SMOOTHING
        if account.bucket is not None:
            account.bucket.give_back(number, unused, now)

    def _check_sessions(self, tenant: str, account: _Account) -> None:
        limit = account.policy.max_sessions
        if not limit or account.num_sessions < limit:
            return
        raise OverloadedError(
            f"Tenant {tenant or '(none)'} has {limit} sessions open, which is its limit: wait for "
            "one to end.",
            retry_delay_ms=delay_ms(account.stay_s / limit),
            metadata={"cause": "tenant_sessions"},
        )

    def _account(self, tenant: str, now: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            self._forget_idle(now)
            policy = self.policy(tenant)
            rate = policy.tokens_per_minute
            bucket = TokenBucket(rate, rate / 60.0, now) if rate else None
            account = self._accounts[tenant] = _Account(policy, bucket)
        return account

    def _forget_idle(self, now: float) -> None:
        """Drop accounts that a new one would equal, before there are too many."""
        if len(self._accounts) < _MAX_IDLE:
            return
        self._accounts = {
            tenant: account
            for tenant, account in self._accounts.items()
            if account.num_sessions
            or (account.bucket is not None and account.bucket.level(now) < account.bucket.capacity)
        }


def delay_ms(seconds: float) -> int:
    """Whole milliseconds to wait before another try, from 1 to a minute's."""
    return max(1, min(MAX_DELAY_MS, math.ceil(seconds * 1000.0)))


def _check_tokens(tenant: str, bucket: TokenBucket, tokens: int, now: float) -> None:
    wait_s = bucket.wait_s(tokens, now)
    if not wait_s:
        return
    limit = f"{bucket.capacity:.0f} tokens a minute, which is the limit of tenant {tenant}"
    if math.isinf(wait_s):
        raise InvalidRequestError(
            f"Prompt and max_tokens come to {tokens} tokens, more than {limit}: shorten them."
        )
    raise OverloadedError(
        f"The session may need {tokens} tokens and has to wait for them at {limit}: ask for less, "
        "or come back later.",
        retry_delay_ms=delay_ms(wait_s),
        metadata={"cause": "tenant_tokens"},
    )
