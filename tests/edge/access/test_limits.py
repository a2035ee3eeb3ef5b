"""What a tenant may use in a minute, with virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bounds import check_bounds
from outrider.errors import ConfigError, OverloadedError, RateLimitedError
from services.edge.access.identity import Identity
from services.edge.access.limiter import UNLIMITED_CHAT, Limiter
from services.edge.access.limits import (
    UNLIMITED,
    Limited,
    RateWords,
    TenantLimits,
    TenantUsage,
    Usage,
    rate_headers,
)

LIMITS = TenantLimits(6, 600, 1200, 2)


def usage(limits: TenantLimits = LIMITS) -> TenantUsage:
    return TenantUsage("acme", limits, 0.0)


def test_requests_are_those_of_a_minute() -> None:
    tenant = usage(TenantLimits(requests_per_minute=6))
    for _ in range(6):
        tenant.begin(0.0)
    with pytest.raises(
        RateLimitedError, match=r"6 requests of a minute; try again in 10\.0s"
    ) as refused:
        tenant.begin(0.0)
    assert refused.value.retry_delay_ms == 10_000
    assert refused.value.metadata == {
        "limited": "requests",
        "limit": "6",
        "remaining": "0",
        "reset_ms": "60000",
    }
    with pytest.raises(RateLimitedError):
        tenant.begin(9.99)
    tenant.begin(10.0)


def test_sessions_are_those_under_way() -> None:
    tenant = usage(TenantLimits(max_sessions=2))
    tenant.begin(0.0)
    tenant.begin(0.0)
    with pytest.raises(RateLimitedError, match="2 chats under way") as refused:
        tenant.begin(1e6)
    assert refused.value.retry_delay_ms > 0 and refused.value.metadata["limited"] == "sessions"
    tenant.end()
    tenant.begin(0.0)


def test_a_prompt_is_paid_for_before_it_is_computed() -> None:
    tenant = usage()
    tenant.take_input(600, 0.0)
    with pytest.raises(RateLimitedError, match="try again in 1") as refused:
        tenant.take_input(10, 0.0)
    assert refused.value.retry_delay_ms == 1000
    tenant.take_input(10, 1.0)
    with pytest.raises(RateLimitedError, match="input tokens of a minute"):
        tenant.begin(1.0)


def test_a_prompt_that_never_fits_is_said_to() -> None:
    with pytest.raises(RateLimitedError, match="shorten it") as refused:
        usage().take_input(601, 1e6)
    assert refused.value.retry_delay_ms == 0


def test_a_reply_goes_on_and_the_next_one_waits() -> None:
    tenant = usage()
    tenant.begin(0.0)
    tenant.charge(Limited.OUTPUT, 1200 + 200, 0.0)
    with pytest.raises(RateLimitedError, match="output tokens") as refused:
        tenant.begin(0.0)
    # 200 below zero, and one token is needed: at 20 a second.
    assert refused.value.retry_delay_ms == pytest.approx(10_050, abs=1)
    with pytest.raises(RateLimitedError):
        tenant.begin(10.0)
    tenant.begin(10.06)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "input", "output", "end"]),
        st.integers(1, 700),
        st.floats(0.0, 30.0),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_more_than_a_minutes_worth_and_what_has_filled_is_let_through(
    steps: list[tuple[str, int, float]],
) -> None:
    tenant, now, begun, input_tokens, num_sessions = usage(), 0.0, 0, 0, 0
    for what, amount, pause_s in steps:
        now += pause_s
        try:
            if what == "begin":
                tenant.begin(now)
                begun, num_sessions = begun + 1, num_sessions + 1
            elif what == "input":
                tenant.take_input(amount, now)
                input_tokens += amount
            elif what == "output":
                tenant.charge(Limited.OUTPUT, amount, now)
            elif num_sessions:
                tenant.end()
                num_sessions -= 1
        except RateLimitedError as error:
            assert error.retry_delay_ms or amount > LIMITS.input_tokens_per_minute
            assert int(error.metadata["remaining"]) >= 0
        assert begun <= 6 + now * 6 / 60 + 1e-6
        assert input_tokens <= 600 + now * 600 / 60 + 1e-6
        assert tenant.num_sessions == num_sessions <= 2
        for state in tenant.states(now).values():
            assert 0 <= state.remaining <= state.limit and state.reset_s >= 0


@given(st.integers(1, 600), st.floats(0.0, 100.0))
def test_who_comes_back_when_told_is_let_through(amount: int, spent_at: float) -> None:
    tenant = usage()
    tenant.take_input(600, spent_at)
    with pytest.raises(RateLimitedError) as refused:
        tenant.take_input(amount, spent_at)
    tenant.take_input(amount, spent_at + refused.value.retry_delay_ms / 1000 + 1e-6)


def test_headers_have_the_names_that_clients_know() -> None:
    tenant = usage()
    tenant.begin(0.0)
    tenant.take_input(300, 0.0)
    headers = rate_headers(tenant.states(0.0), RateWords.OPENAI, 1_700_000_000.5)
    assert headers["x-ratelimit-limit-requests"] == "6"
    assert headers["x-ratelimit-remaining-requests"] == "5"
    assert headers["x-ratelimit-reset-requests"] == "10.000s"
    assert headers["x-ratelimit-remaining-tokens"] == "300", "of prompts, which are nearer to it"
    assert headers["x-ratelimit-remaining-output-tokens"] == "1200"
    assert rate_headers({}, RateWords.OPENAI, 0.0) == {}
    headers = rate_headers(tenant.states(0.0), RateWords.ANTHROPIC, 1_700_000_000.5)
    assert headers["anthropic-ratelimit-requests-limit"] == "6"
    assert headers["anthropic-ratelimit-requests-remaining"] == "5"
    assert headers["anthropic-ratelimit-requests-reset"] == "2023-11-14T22:13:31Z"
    assert headers["anthropic-ratelimit-tokens-remaining"] == "300"
    assert headers["anthropic-ratelimit-input-tokens-remaining"] == "300"
    assert headers["anthropic-ratelimit-output-tokens-remaining"] == "1200"
    assert not any(name.startswith("x-") for name in headers)


def test_a_tenant_without_limits_costs_nothing() -> None:
    limiter = Limiter(lambda: 0.0)
    identity = Identity(tenant="acme")
    assert limiter.begin(identity) is UNLIMITED_CHAT
    assert limiter.states(identity) == {} and not limiter.is_used_up(identity)
    told: list[object] = []
    UNLIMITED_CHAT.ask(10**9, told.append)
    assert told == [None]


def test_a_chat_is_counted_once_and_given_back_once() -> None:
    limiter = Limiter(lambda: 0.0)
    identity = Identity(tenant="acme", limits=TenantLimits(0, 100, 100, 1))
    first = limiter.begin(identity)
    with pytest.raises(RateLimitedError):
        limiter.begin(identity)
    first.close()
    first.close()
    second = limiter.begin(identity)
    with pytest.raises(RateLimitedError):
        limiter.begin(identity)
    told: list[Any] = []
    second.ask(60, told.append)
    second.ask(60, told.append)
    assert told[0] is None and isinstance(told[1], RateLimitedError)
    assert not limiter.is_used_up(Identity(tenant="other", limits=identity.limits))
    second.charge(output_tokens=500)
    second.close()
    assert limiter.is_used_up(identity)


def test_tenants_do_not_share_limits() -> None:
    limiter, limits = Limiter(lambda: 0.0), TenantLimits(requests_per_minute=1)
    limiter.begin(Identity(tenant="a", limits=limits))
    limiter.begin(Identity(tenant="b", limits=limits))
    with pytest.raises(RateLimitedError, match="tenant a"):
        limiter.begin(Identity(tenant="a", limits=limits))


def test_limits_that_change_count_from_then_on() -> None:
    held = Usage()
    tenant = held.of("a", TenantLimits(1, max_sessions=3), 0.0)
    tenant.begin(0.0)
    with pytest.raises(RateLimitedError):
        held.of("a", TenantLimits(1, max_sessions=3), 0.0).begin(0.0)
    held.of("a", TenantLimits(2, max_sessions=2), 0.0).begin(0.0)
    with pytest.raises(RateLimitedError, match="under way"):
        held.of("a", TenantLimits(2, max_sessions=2), 0.0).begin(0.0)


def test_a_chat_from_before_a_change_brings_no_old_limits_back() -> None:
    limiter = Limiter(lambda: 0.0)
    before = Identity(tenant="a", limits=TenantLimits(10, 1000, 100))
    after = Identity(tenant="a", limits=TenantLimits(1, 1000, 200))
    old = limiter.begin(before)
    new = limiter.begin(after)
    new.charge(output_tokens=150)
    told: list[Any] = []
    old.ask(600, told.append)
    old.charge(output_tokens=50)
    assert told == [None]
    assert limiter.is_used_up(before), "nor does a look at what is left"
    states = limiter.states(after)
    assert states[Limited.REQUESTS].remaining == 0
    assert states[Limited.INPUT].remaining == 400
    assert states[Limited.OUTPUT].remaining == 0, "each of the two has used of one bucket"
    with pytest.raises(RateLimitedError):
        limiter.begin(after)
    old.close()
    old.ask(10**6, told.append)
    old.charge(output_tokens=100)
    assert told == [None, None], "a chat that has ended asks for nothing"


def test_so_many_tenants_are_remembered() -> None:
    held = Usage(max_tenants=2)
    held.of("a", LIMITS, 0.0).begin(0.0)
    held.of("b", LIMITS, 0.0)
    held.of("c", LIMITS, 0.0).begin(0.0)
    assert len(held) == 2 and held.known("b") is None, "the one without a chat has gone"
    with pytest.raises(OverloadedError):
        held.of("d", LIMITS, 0.0)
    first = held.known("a")
    assert first is not None
    first.end()
    held.of("d", LIMITS, 0.0)
    assert held.known("a") is None and held.known("c") is not None


@pytest.mark.parametrize(
    "limits", [TenantLimits(-1), TenantLimits(0, 10**10), TenantLimits(max_sessions=-5)]
)
def test_limits_that_cannot_be(limits: TenantLimits) -> None:
    with pytest.raises(ConfigError, match="here: "):
        check_bounds(limits, "here: ")
    check_bounds(UNLIMITED)
