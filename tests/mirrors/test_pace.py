"""The cap holds over any stretch of time, and costs nothing below it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.mirrors.pace import LEAST_BURST_BYTES, BandwidthCap


@given(
    rate=st.integers(1, 1 << 30),
    takes=st.lists(st.tuples(st.integers(0, 1 << 24), st.floats(0, 60)), min_size=1, max_size=30),
)
def test_over_any_time_no_more_passes_than_the_cap_allows(
    rate: int, takes: list[tuple[int, float]]
) -> None:
    bucket, now = BandwidthCap(rate, 0.0), 0.0
    burst = max(rate / 4, LEAST_BURST_BYTES)
    passed = list[tuple[float, int]]()
    for num_bytes, idle_s in takes:
        now += idle_s
        passed.append((now, num_bytes))
        now += bucket.take(num_bytes, now)
    for first, (begin, _) in enumerate(passed):
        for last in range(first, len(passed)):
            total = sum(num_bytes for _, num_bytes in passed[first:last])
            # What the last one takes is waited for by those behind it.
            assert total <= (rate * (passed[last][0] - begin) + burst) * (1 + 1e-9) + 1


def test_without_a_cap_nothing_waits_and_a_clock_that_goes_back_gives_nothing() -> None:
    assert BandwidthCap(0.0, 0.0).take(1 << 40, 0.0) == 0.0
    bucket = BandwidthCap(1e6, 100.0)
    bucket.take(LEAST_BURST_BYTES, 100.0)
    assert bucket.take(1_000_000, 50.0) == 1.0
