"""The cache: what is kept, and what counts as memory."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.tokenization.segment_cache import CachePolicy, SegmentCache


def ids(*values: int) -> array[int]:
    return array("I", values)


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("a" * 65_536, True),
        ("a" * 65_537, False),
        ("a" * 65_533 + "\u2019", True),
        ("a" * 65_534 + "\u2019", False),
        ("\U0001f600" + "a" * 65_532, True),
        ("\U0001f600" * 16_384, True),
        ("\U0001f600" * 16_385, False),
        ("\ud800" + "a" * 65_534, False),
    ],
    ids=lambda value: f"{len(value)} characters" if isinstance(value, str) else None,
)
def test_texts_of_up_to_64_kb_in_utf8_are_kept(text: str, is_kept: bool) -> None:
    cache = SegmentCache(CachePolicy())
    cache.put(text, ids(1))
    assert len(cache) == is_kept
    assert cache.num_bytes >= is_kept * text.__sizeof__(), "what is held counts as memory"


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
