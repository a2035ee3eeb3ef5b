"""The common beginning of two texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.agreement import num_agreeing

IDS = st.lists(st.integers(0, 2), max_size=6)


@given(IDS, IDS)
def test_the_common_beginning_is_as_long_as_can_be(left: list[int], right: list[int]) -> None:
    count = num_agreeing(left, right)
    assert left[:count] == right[:count]
    assert left[: count + 1] != right[: count + 1] or count == min(len(left), len(right))


def test_characters_agree_like_ids() -> None:
    assert num_agreeing("the cat", "the cap") == 6
