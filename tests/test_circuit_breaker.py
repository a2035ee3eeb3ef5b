"""One that fails is left alone for longer and longer, and asked again by one at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.circuit_breaker import CircuitBreaker, CircuitBreakerPolicy

POLICY = CircuitBreakerPolicy(max_failures=3, first_pause_s=1.0, max_pause_s=4.0)


def broken(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(POLICY)
    for _ in range(POLICY.max_failures):
        assert breaker.allows(now)
        breaker.failed(now)
    return breaker


def test_failures_in_a_row_open_it_and_pauses_double() -> None:
    breaker, now = broken(), 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert breaker.is_open and not breaker.allows(now + pause_s - 0.01)
        now += pause_s
        assert breaker.allows(now), "one may try"
        assert not breaker.allows(now), "and no one else meanwhile"
        breaker.failed(now)


def test_failures_of_attempts_that_began_before_it_opened_make_no_pause_longer() -> None:
    """One stall of a server ends all that is under way there."""
    breaker = broken()
    for _ in range(20):
        breaker.failed(0.5)
    assert not breaker.allows(0.9) and breaker.allows(1.0)
    breaker.failed(1.5)
    breaker.failed(1.5)
    assert not breaker.allows(3.4) and breaker.allows(3.5)


def test_one_success_closes_it() -> None:
    breaker = broken()
    assert breaker.allows(1.0)
    breaker.succeeded()
    assert not breaker.is_open and breaker.allows(1.0) and breaker.allows(1.0)
    breaker.failed(2.0)
    assert breaker.allows(2.0), "a single failure is none"


@given(st.lists(st.sampled_from(["fail", "succeed", "wait"]), max_size=60))
def test_it_never_stays_open_for_longer_than_the_longest_pause(steps: list[str]) -> None:
    breaker, now = CircuitBreaker(POLICY), 0.0
    for step in steps:
        now += 0.5 * (step == "wait")
        if breaker.allows(now):
            breaker.failed(now) if step == "fail" else breaker.succeeded()
    assert breaker.allows(now + POLICY.max_pause_s)
