"""Tries after a loss: they double, are bounded, and end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.client.transport.backoff import Backoff, ReconnectPolicy

POLICY = ReconnectPolicy(give_up_after_s=10, first_delay_s=0.1, max_delay_s=2)


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(POLICY)
    assert [backoff.next_delay(5.0) for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]
    lost_at = backoff.lost_at
    backoff.worked()
    assert lost_at == 5.0
    assert backoff.lost_at is None
    assert backoff.next_delay(100.0) == 0.1


@given(st.floats(0, 1e6), st.lists(st.floats(0.5, 1.0), min_size=1, max_size=200))
def test_tries_end_in_time(lost_at: float, spreads: list[float]) -> None:
    backoff, now, tries = Backoff(POLICY), lost_at, 0
    for spread in spreads:
        delay = backoff.next_delay(now, spread)
        if delay is None:
            assert now + 2 * spread >= lost_at + 10
            break
        assert 0 < delay <= 2
        tries += 1
        now += delay
        assert now < lost_at + 10
    assert tries <= 20


def test_no_second_try_without_time() -> None:
    assert Backoff(ReconnectPolicy(give_up_after_s=0)).next_delay(1.0) is None
