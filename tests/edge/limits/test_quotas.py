"""Shares of one key: counts, rates, and a bounded number of keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import OverloadedError
from services.edge.limits.quotas import Count, QuotaLimits, Quotas, Rate, RateLimit, TokenBucket

CHATS = Count.CHATS


def quotas(max_chats: int = 2, max_keys: int = 100, per_s: float = 10.0) -> Quotas[str]:
    limits = QuotaLimits({CHATS: max_chats}, {Rate.HANDSHAKES: RateLimit(per_s, 20.0)}, max_keys)
    return Quotas(limits)


def test_what_one_holds_is_bounded_and_another_does_not_notice() -> None:
    shares = quotas(max_chats=2)
    shares.hold("a", CHATS, 0.0)
    shares.hold("a", CHATS, 0.0)
    with pytest.raises(OverloadedError) as refused:
        shares.hold("a", CHATS, 0.0)
    assert refused.value.retry_delay_ms > 0
    shares.hold("b", CHATS, 0.0)
    shares.release("a", CHATS)
    shares.hold("a", CHATS, 0.0)
    assert shares.held("a", CHATS) == 2 and shares.held("b", CHATS) == 1


def test_what_is_not_named_is_not_limited() -> None:
    shares = quotas()
    for _ in range(1000):
        shares.hold("a", Count.STREAMS, 0.0)
        shares.spend("a", Rate.TYPED_BYTES, 1e9, 0.0)


def test_a_refusal_says_when_there_is_enough() -> None:
    shares = quotas(per_s=10.0)
    shares.spend("a", Rate.HANDSHAKES, 20, 0.0)
    with pytest.raises(OverloadedError) as refused:
        shares.spend("a", Rate.HANDSHAKES, 5, 0.0)
    assert refused.value.retry_delay_ms == 500
    shares.spend("b", Rate.HANDSHAKES, 5, 0.0)
    shares.spend("a", Rate.HANDSHAKES, 5, 0.5)


def test_who_holds_nothing_is_forgotten_first_and_who_does_never() -> None:
    shares = quotas(max_keys=3)
    shares.hold("busy", CHATS, 0.0)
    for key in range(1000):
        shares.spend(f"{key}", Rate.HANDSHAKES, 20, 0.0)
        assert len(shares) <= 3
    assert shares.held("busy", CHATS) == 1
    with pytest.raises(OverloadedError):  # the last ones are still known
        shares.spend("999", Rate.HANDSHAKES, 20, 0.0)
    shares.hold("999", CHATS, 0.0)
    shares.hold("998", CHATS, 0.0)
    with pytest.raises(OverloadedError, match="too many other clients"):
        shares.hold("new", CHATS, 0.0)
    shares.release("busy", CHATS)
    shares.hold("new", CHATS, 0.0)
    assert len(shares) == 3


def test_a_bucket_holds_a_burst_however_long_it_was_left_alone() -> None:
    bucket = TokenBucket(RateLimit(3.0, 10.0), 0.0)
    assert bucket.level(1e6) == 10.0
    assert bucket.take(10.0, 1e6) and not bucket.take(0.1, 1e6)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 40)), max_size=50))
def test_a_bucket_never_gives_more_than_its_rate_and_burst(asks: list[tuple[float, float]]) -> None:
    bucket, now, given_out = TokenBucket(RateLimit(3.0, 10.0), 0.0), 0.0, 0.0
    for pause, amount in asks:
        now += pause
        if bucket.take(amount, now):
            given_out += amount
        elif amount <= 10.0:
            assert bucket.take(amount, now + bucket.wait_s(amount, now) + 1e-6)
            given_out += amount
            now += bucket.wait_s(amount, now)
        assert given_out <= 10.0 + 3.0 * now + 1e-3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=100))
def test_counts_are_those_of_a_plain_model(steps: list[tuple[str, bool]]) -> None:
    shares, model = quotas(max_chats=3), dict.fromkeys("abc", 0)
    for key, holds in steps:
        if holds:
            try:
                shares.hold(key, CHATS, 0.0)
                model[key] += 1
            except OverloadedError:
                assert model[key] == 3
        elif model[key]:
            shares.release(key, CHATS)
            model[key] -= 1
        assert {each: shares.held(each, CHATS) for each in "abc"} == model
