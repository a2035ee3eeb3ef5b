"""How much KV memory sessions will have at the most."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.inference.scheduler.kv_forecast import KvDemand, peak_tokens

demands = st.lists(st.builds(KvDemand, st.integers(0, 30), st.integers(0, 12)), max_size=8)


def test_those_that_end_first_leave_room_for_the_others() -> None:
    assert peak_tokens([]) == 0
    assert peak_tokens([KvDemand(10, 5)]) == 15
    assert peak_tokens([KvDemand(10, 5), KvDemand(10, 5)]) == 30
    # When the first one ends they have 12 + 12; the other one has 20 at its own end.
    assert peak_tokens([KvDemand(10, 2), KvDemand(10, 10)]) == 24
    assert peak_tokens([KvDemand(100, 0), KvDemand(1, 10)]) == 101


@given(demands)
def test_the_peak_is_the_most_of_any_step(sessions: list[KvDemand]) -> None:
    steps = [
        sum(it.present_tokens + step for it in sessions if it.future_tokens >= step)
        for step in range(13)
    ]
    assert peak_tokens(sessions) == max(steps)


@given(demands, st.builds(KvDemand, st.integers(0, 30), st.integers(0, 12)))
def test_one_more_never_makes_it_less(sessions: list[KvDemand], more: KvDemand) -> None:
    with_it = peak_tokens([*sessions, more])
    alone = sum(more)
    assert max(peak_tokens(sessions), alone) <= with_it <= peak_tokens(sessions) + alone
