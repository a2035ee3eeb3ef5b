"""What happened in the last while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.conductor.window import NUM_SLICES, Window


def test_an_empty_one_says_nothing() -> None:
    window = Window(60.0)
    assert window.late(0.0) == (0.0, 0)
    assert window.utilization(0.0) == window.peak(0.0) == 0.0


def test_the_peak_is_that_of_the_busiest_slice() -> None:
    window = Window(60.0)
    for now in range(60):
        window.look(0.9 if 20 <= now < 25 else 0.1, float(now))
    assert window.peak(59.0) == pytest.approx(0.9)
    assert window.utilization(59.0) == pytest.approx((5 * 0.9 + 55 * 0.1) / 60)
    assert window.peak(85.1) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.booleans()), max_size=100))
def test_it_holds_the_last_while_and_no_more_than_its_slices(
    requests: list[tuple[float, bool]],
) -> None:
    window, now, came = Window(60.0), 0.0, []
    for pause_s, is_late in requests:
        now += pause_s
        window.request(is_late, now)
        came.append((now, is_late))
        share, num = window.late(now)
        assert len(window._slices) <= NUM_SLICES
        assert sum(now - at < 60.0 - 60.0 / NUM_SLICES for at, _ in came) <= num
        assert num <= sum(now - at < 60.0 for at, _ in came)
        late = [is_late for _, is_late in came[len(came) - num :]]
        assert share == pytest.approx(sum(late) / num)
