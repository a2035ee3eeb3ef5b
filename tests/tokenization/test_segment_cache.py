"""The cache: bounded, and the least recently used go first."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from outrider.tokenization.segment_cache import CachePolicy, SegmentCache


def ids(*values: int) -> array[int]:
    return array("I", values)


def test_the_least_recently_used_go_first() -> None:
    cache = SegmentCache(CachePolicy(max_entries=2))
    cache.put("a", ids(1))
    cache.put("b", ids(2))
    assert cache.get("a") == ids(1)
    cache.put("c", ids(3))
    assert cache.get("b") is None
    assert cache.get("a") == ids(1) and cache.get("c") == ids(3)


def test_texts_up_to_64_kb_are_kept_and_longer_ones_not() -> None:
    cache = SegmentCache(CachePolicy())
    cache.put("a" * 65_000, ids(1))
    cache.put("a" * 66_000, ids(1))
    assert len(cache) == 1


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(0, 50))))
def test_entries_and_bytes_stay_within_the_policy(puts: list[tuple[str, int]]) -> None:
    policy = CachePolicy(max_entries=5, max_bytes=1500, max_text_bytes=150)
    cache = SegmentCache(policy)
    kept: dict[str, array[int]] = {}
    for text, count in puts:
        cache.put(text, ids(*range(count)))
        kept[text] = ids(*range(count))
        assert len(cache) <= policy.max_entries and 0 <= cache.num_bytes <= policy.max_bytes
    for text, expected in kept.items():
        assert cache.get(text) in (None, expected)
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)
