"""One line per interval, with every occurrence counted once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.telemetry.log_aggregation import MAX_KINDS, OTHER, EventAggregator


def test_the_first_is_said_at_once_and_the_others_together() -> None:
    seen = EventAggregator(10.0)
    assert seen.due(0.0) is None
    seen.add("FULL")
    assert seen.due(0.0) == {"FULL": 1}
    for _ in range(1000):
        seen.add("FULL")
    seen.add("BAD")
    assert seen.due(9.9) is None
    assert seen.due(10.0) == {"FULL": 1000, "BAD": 1}
    assert seen.due(30.0) is None
    seen.add("FULL")
    assert seen.due(30.0) == {"FULL": 1}, "it was quiet for a while"


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.text(max_size=2))))
def test_everything_is_counted_once_and_lines_are_apart(steps: list[tuple[float, str]]) -> None:
    seen, now, times = EventAggregator(10.0), 0.0, []
    said: Counter[str] = Counter()
    for passed_s, kind in steps:
        now += passed_s
        seen.add(kind)
        if counts := seen.due(now):
            times.append(now)
            said.update(counts)
    said.update(seen.due(now + 10.0) or {})
    assert said.total() == len(steps)
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(times))


def test_a_flood_of_kinds_is_bounded() -> None:
    seen = EventAggregator()
    for number in range(10_000):
        seen.add(str(number))
    counts = seen.due(0.0)
    assert counts is not None
    assert len(counts) == MAX_KINDS + 1
    assert counts[OTHER] == 10_000 - MAX_KINDS
