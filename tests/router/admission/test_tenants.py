"""What each tenant may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ConfigError, InvalidRequestError, OverloadedError
from outrider.session.types import Priority
from services.router.admission import tenants as tenants_module
from services.router.admission.tenants import TenantPolicy, Tenants


@pytest.mark.parametrize(
    ("tier", "asked", "granted"),
    [
        ("premium", Priority.HIGH, Priority.HIGH),
        ("premium", Priority.MEDIUM, Priority.MEDIUM),
        ("standard", Priority.HIGH, Priority.MEDIUM),
        ("standard", Priority.LOW, Priority.LOW),
        ("economy", Priority.HIGH, Priority.LOW),
        ("economy", Priority.LOW, Priority.LOW),
    ],
)
def test_the_tier_bounds_the_class(tier: str, asked: Priority, granted: Priority) -> None:
    assert Tenants([TenantPolicy("acme", tier)]).grant("acme", asked) is granted


def test_who_has_no_entry_gets_that_of_all_others() -> None:
    tenants = Tenants([TenantPolicy("*", "economy", max_sessions=1), TenantPolicy("acme")])
    assert tenants.grant("stranger", Priority.HIGH) is Priority.LOW
    assert tenants.grant("acme", Priority.HIGH) is Priority.HIGH
    assert (tenants.label("stranger"), tenants.label("acme")) == ("*", "acme")
    tenants.open("a", 1, 0.0)
    tenants.open("b", 1, 0.0)  # each by itself


def test_sessions_at_once_are_bounded_and_the_delay_is_what_they_take() -> None:
    tenants = Tenants([TenantPolicy("acme", max_sessions=2)])
    for _ in range(20):
        tenants.open("acme", 1, 0.0)
        tenants.close("acme", 0, unused_tokens=0, duration_s=8.0, now=8.0)
    tenants.open("acme", 1, 0.0)
    number = tenants.open("acme", 1, 0.0)
    with pytest.raises(OverloadedError) as caught:
        tenants.open("acme", 1, 0.0)
    assert caught.value.metadata["cause"] == "tenant_sessions"
    assert 3500 < caught.value.retry_delay_ms <= 4000
    tenants.close("acme", number, unused_tokens=0, duration_s=8.0, now=8.0)
    tenants.open("acme", 1, 8.0)


def test_tokens_a_minute_are_bounded_and_come_back_unused() -> None:
    tenants = Tenants([TenantPolicy("acme", tokens_per_minute=600)])
    number = tenants.open("acme", 600, 0.0)
    with pytest.raises(OverloadedError) as caught:
        tenants.open("acme", 50, 1.0)
    assert caught.value.metadata["cause"] == "tenant_tokens"
    assert caught.value.retry_delay_ms == 4000
    tenants.close("acme", number, unused_tokens=500, duration_s=1.0, now=1.0)
    tenants.open("acme", 500, 1.0)


def test_more_tokens_than_a_tenant_ever_has_are_a_bad_request() -> None:
    tenants = Tenants([TenantPolicy("acme", tokens_per_minute=600)])
    with pytest.raises(InvalidRequestError, match="601 tokens, more than 600"):
        tenants.open("acme", 601, 0.0)


def test_who_started_elsewhere_owes_its_tokens() -> None:
    tenants = Tenants([TenantPolicy("acme", tokens_per_minute=600)])
    tenants.open("acme", 600, 0.0)
    tenants.open("acme", 300, 0.0, is_resumed=True)
    with pytest.raises(OverloadedError) as caught:
        tenants.open("acme", 100, 0.0)
    assert caught.value.retry_delay_ms == 40_000


def test_who_says_that_it_started_elsewhere_overdraws_one_minute_at_most() -> None:
    tenants = Tenants([TenantPolicy("acme", tokens_per_minute=600)])
    with pytest.raises(InvalidRequestError, match="1201 tokens"):
        tenants.open("acme", 1201, 0.0, is_resumed=True)
    number = tenants.open("acme", 1000, 0.0, is_resumed=True)
    tenants.open("acme", 200, 0.0, is_resumed=True)
    for tokens, delay_ms in ((1, 100), (100, 10_000)):
        with pytest.raises(OverloadedError) as caught:
            tenants.open("acme", tokens, 0.0, is_resumed=True)
        assert caught.value.metadata["cause"] == "tenant_tokens"
        assert caught.value.retry_delay_ms == delay_ms
    tenants.close("acme", number, unused_tokens=900, duration_s=1.0, now=0.0)
    tenants.open("acme", 900, 0.0, is_resumed=True)


def test_accounts_of_idle_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "_MAX_ACCOUNTS", 3)
    tenants = Tenants([TenantPolicy("*", max_sessions=1, tokens_per_minute=60)])
    tenants.open("busy", 1, 0.0)
    number = tenants.open("poor", 60, 0.0)
    tenants.close("poor", number, unused_tokens=0, duration_s=1.0, now=1.0)
    for count in range(50):
        number = tenants.open(f"t{count}", 1, 1.0)
        tenants.close(f"t{count}", number, unused_tokens=1, duration_s=0.0, now=1.0)
        assert len(tenants._accounts) <= 4
    with pytest.raises(OverloadedError):
        tenants.open("busy", 1, 1.0)
    with pytest.raises(OverloadedError):
        tenants.open("poor", 60, 1.0)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": ""}, "no name"),
        ({"tier": "gold"}, "premium, standard, economy"),
        ({"max_sessions": -1}, "max_sessions of tenant acme is -1"),
        ({"tokens_per_minute": -5}, "use 0 for no limit"),
        ({"weight": 0.0}, "weight of tenant acme"),
        ({"weight": float("inf")}, "weight of tenant acme"),
    ],
)
def test_limits_that_cannot_work_are_refused(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TenantPolicy(**{"name": "acme", **entry})
