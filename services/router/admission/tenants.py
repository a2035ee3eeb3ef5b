"""Limits of each tenant: class, sessions at once, tokens per minute. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from outrider.errors import ConfigError, InvalidRequestError, OverloadedError
from outrider.session.types import Priority
from services.router.admission.token_bucket import ReservationBucket

OTHERS: Final = "*"
"""Name of the entry for tenants that have none of their own; each of them gets these limits."""

TIERS: Final = {
    "premium": Priority.HIGH,
    "standard": Priority.MEDIUM,
    "economy": Priority.LOW,
}
"""The highest class that a tenant of the tier gets."""

MAX_DELAY_MS: Final = 60_000
"""Longest retry delay."""
_SMOOTHING: Final = 0.2
"""Weight of the latest session in the mean length of a tenant's sessions."""
_FIRST_DURATION_S: Final = 1.0
"""Assumed length of a tenant's sessions before one has ended."""
_MAX_ACCOUNTS: Final = 4096
"""Tenants remembered before idle ones are forgotten."""


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's limits (`[[router.tenants]]`). Raises ConfigError."""

    name: str
    """Name of the tenant, as the edge sends it; "*": every tenant without an entry, each with these
    limits."""
    tier: str = "premium"
    """premium: up to HIGH; standard: up to MEDIUM; economy: LOW. A session that asks for no class
    gets MEDIUM, or less if the tier allows less."""
    max_sessions: int = 0
    """Sessions open at once through this router, waiting ones included; 0: no limit."""
    tokens_per_minute: int = 0
    """Tokens of prompts and replies through this router; a minute's worth may be used at once. A
    session reserves prompt + max_tokens and returns what it did not use; 0: no limit."""
    weight: float = 1.0
    """Share of the turns in the queue, relative to other tenants that wait in the same class."""
    allow_inexact: bool = False
    """Whether replies may be inexact, labelled for the client. A reply whose replica is lost then
    continues on a replica that computes differently if none that computes the same is in service;
    otherwise the chat waits for one, and fails if none appears. And replicas with
    `inference.inexact_kv` may load KV for it that travelled in 8 bits."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError('a tenant has no name; set it in [[router.tenants]], "*" for all')
        where = f"of tenant {self.name}"
        if self.tier not in TIERS:
            raise ConfigError(f"tier {where} is {self.tier!r}; use one of {', '.join(TIERS)}")
        for name in ("max_sessions", "tokens_per_minute"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {where} is {getattr(self, name)}; use 0 for no limit")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(f"weight {where} is {self.weight}; set it above 0")


@dataclass(slots=True)
class _Account:
    """Open sessions and reserved tokens of one tenant."""

    policy: TenantPolicy
    bucket: ReservationBucket | None
    num_sessions: int = 0
    duration_s: float = _FIRST_DURATION_S
    """Length of its sessions, smoothed."""


class Tenants:
    """Accounts of all tenants. Every `open` is followed by one `close`."""

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

    def grant(self, tenant: str, asked: Priority) -> Priority:
        """The class that a session gets."""
        return min(asked, TIERS[self.policy(tenant).tier])

    def open(self, tenant: str, tokens: int, now: float, *, is_resumed: bool = False) -> int:
        """Open a session that may need `tokens` tokens; returns the id of its reservation.

        A resumed session was admitted before, so it may overdraw the tenant's tokens: by at most
        one minute's worth, because clients may claim that any chat is resumed. Raises
        OverloadedError, with the time until there is room, and InvalidRequestError for more tokens
        than the tenant can ever have at once.
        """
        account = self._account(tenant, now)
        self._check_sessions(tenant, account)
        if account.bucket is not None:
            overdraft = account.bucket.capacity if is_resumed else 0.0
            _check_tokens(tenant, account.bucket, tokens, overdraft, now)
        account.num_sessions += 1
        return account.bucket.take(tokens, now) if account.bucket is not None else 0

    def close(
        self, tenant: str, reservation: int, *, unused_tokens: int, duration_s: float, now: float
    ) -> None:
        """A session ended. `unused_tokens` of those reserved; below 0: it had so many more."""
        account = self._accounts[tenant]
        account.num_sessions -= 1
        account.duration_s += (duration_s - account.duration_s) * _SMOOTHING
        if account.bucket is not None:
            account.bucket.give_back(reservation, unused_tokens, now)

    def _check_sessions(self, tenant: str, account: _Account) -> None:
        limit = account.policy.max_sessions
        if not limit or account.num_sessions < limit:
            return
        raise OverloadedError(
            f"tenant {tenant or '(none)'} has {limit} sessions open, which is its limit; wait for "
            "one to end",
            retry_delay_ms=delay_ms(account.duration_s / limit),
            metadata={"cause": "tenant_sessions"},
        )

    def _account(self, tenant: str, now: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            self._forget_idle(now)
            policy = self.policy(tenant)
            rate = policy.tokens_per_minute
            bucket = ReservationBucket(rate, rate / 60.0, now) if rate else None
            account = self._accounts[tenant] = _Account(policy, bucket)
        return account

    def _forget_idle(self, now: float) -> None:
        """If there are too many accounts, drop those that are in the same state as a new one."""
        if len(self._accounts) < _MAX_ACCOUNTS:
            return
        self._accounts = {
            tenant: account
            for tenant, account in self._accounts.items()
            if account.num_sessions
            or (account.bucket is not None and account.bucket.level(now) < account.bucket.capacity)
        }


def delay_ms(seconds: float) -> int:
    """A retry delay in whole milliseconds, from 1 to MAX_DELAY_MS."""
    return max(1, min(MAX_DELAY_MS, math.ceil(seconds * 1000.0)))


def _check_tokens(
    tenant: str, bucket: ReservationBucket, tokens: int, overdraft: float, now: float
) -> None:
    wait_s = bucket.wait_s(tokens - overdraft, now)
    if not wait_s:
        return
    limit = f"{bucket.capacity:.0f} tokens a minute, which is the limit of tenant {tenant}"
    if math.isinf(wait_s):
        raise InvalidRequestError(
            f"prompt and max_tokens come to {tokens} tokens, more than {limit}; shorten them"
        )
    raise OverloadedError(
        f"the session may need {tokens} tokens and has to wait for them at {limit}; ask for less, "
        "or come back later",
        retry_delay_ms=delay_ms(wait_s),
        metadata={"cause": "tenant_tokens"},
    )
