"""Workers that find boundaries for themselves agree, and cut only where it is safe."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bulk.plan import boundaries
from outrider.bulk.plan.boundaries import slice_boundary
from outrider.errors import FrameTooLargeError
from outrider.tokenization.cuts import CutRule

RULE = CutRule.of(r"\S(?=[ \t])|[a-z](?=[0-9])", ["<a b>", "<é 好>", "x1y", "plain"])
PIECES = ["a", "b ", " ", "\t", "x1y", "<a b>", "<é 好>", "<é 好", "é", "好 ", "🙂 ", "z9", "\n"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def reader(data: bytes) -> boundaries.Read:
    return lambda begin, end: data[begin:end]


def safe_places(text: str) -> list[int]:
    """Bytes at which the rule may cut the text, by asking it about the whole text."""
    places, at = [], 1
    while (cut := RULE.first_cut(text, at)) is not None:
        places.append(len(text[:cut].encode()))
        at = cut + 1
    return places


@given(TEXTS, st.integers(1, 40))
def test_an_edge_is_the_first_safe_place(text: str, window_bytes: int) -> None:
    data = text.encode()
    places = [*safe_places(text), len(data)]
    with patch.object(boundaries, "_FIRST_WINDOW_BYTES", window_bytes):
        for position in range(1, len(data)):
            found = slice_boundary(RULE, reader(data), len(data), position)
            assert found == min(place for place in places if place >= position)


@given(st.binary(max_size=60), st.integers(1, 20))
def test_bytes_that_are_no_text_have_edges_too(data: bytes, window_bytes: int) -> None:
    with patch.object(boundaries, "_FIRST_WINDOW_BYTES", window_bytes):
        found = [slice_boundary(RULE, reader(data), len(data), at) for at in range(len(data) + 1)]
    assert found == sorted(found)
    assert all(at <= place <= len(data) for at, place in enumerate(found))


@pytest.mark.parametrize("position", [-3, 0, 5, 9])
def test_the_ends_are_edges(position: int) -> None:
    assert slice_boundary(RULE, reader(b"a b a"), 5, position) == (0 if position <= 0 else 5)


def test_a_text_without_places_is_refused_before_it_is_read_over_and_over() -> None:
    data = b"x" * 5000
    with (
        patch.object(boundaries, "MAX_SEARCH_BYTES", 1000),
        patch.object(boundaries, "_FIRST_WINDOW_BYTES", 100),
        pytest.raises(FrameTooLargeError, match="behind byte 10 hold no place"),
    ):
        slice_boundary(RULE, reader(data), len(data), 10)
