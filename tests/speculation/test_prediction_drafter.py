"""A reply that is a prediction with edits: the drafter goes on behind each of them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.speculation.prediction_drafter import PredictionDrafter

RNG = random.Random(1)
TEXT = [RNG.randrange(400) for _ in range(600)]
NEW = list(range(900, 960))
"""Tokens that the text does not have."""


def num_calls(prediction: list[int], reply: list[int], most: int = 31) -> int:
    """Calls of a model that verifies the drafts; each gives a token of its own."""
    drafter, at, calls = PredictionDrafter(prediction), 0, 0
    while at < len(reply):
        drafts, calls, right = drafter.draft(most).ids, calls + 1, 0
        while (
            right < len(drafts) and at + right < len(reply) and drafts[right] == reply[at + right]
        ):
            right += 1
        drafter.extend(reply[at : at + right + 1])
        at += right + 1
    return calls


def test_a_right_prediction_is_drafted_whole() -> None:
    assert num_calls(TEXT, TEXT) == 19  # 600 tokens, 32 each


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        pytest.param(TEXT[:100] + NEW[:1] + TEXT[101:], 1, id="a token replaced by one"),
        pytest.param(TEXT[:100] + NEW[:3] + TEXT[101:], 4, id="a token replaced by three"),
        pytest.param(TEXT[:100] + NEW[:1] + TEXT[103:], 2, id="three tokens replaced by one"),
        pytest.param(TEXT[:100] + NEW[:20] + TEXT[100:], 22, id="twenty tokens inserted"),
        pytest.param(TEXT[:100] + TEXT[140:], 2, id="forty tokens left out"),
        pytest.param(NEW[:5] + TEXT, 6, id="another beginning"),
        pytest.param(TEXT + NEW[:5], 6, id="a longer end"),
    ],
)
def test_an_edit_costs_a_few_calls(reply: list[int], more: int) -> None:
    assert num_calls(TEXT, reply) <= 19 + more


def test_of_equal_places_the_one_nearest_to_the_departure_is_taken() -> None:
    line = [1, 2, 3]
    text = [token for number in range(60) for token in (*line, 100 + number)]
    reply = [*text[:80], 999, *text[81:]]
    assert num_calls(text, reply) <= num_calls(text, text) + 2


def test_a_reply_of_other_words_is_soon_not_drafted_for() -> None:
    other = [1000 + RNG.randrange(400) for _ in range(300)]
    drafter = PredictionDrafter(TEXT)
    drafter.extend(other)
    assert drafter.draft(31).ids == ()
    assert not drafter.is_following
    assert num_calls(TEXT, other) == 300


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=80),
    st.integers(0, 9),
)
def test_any_reply_gets_drafts_in_order_of_their_chances(
    prediction: list[int], reply: list[int], most: int
) -> None:
    drafter = PredictionDrafter(prediction)
    for token in reply:
        drafts = drafter.draft(most)
        assert len(drafts.ids) == len(drafts.survival) <= most
        assert all(0 < chance <= 1 for chance in drafts.survival)
        assert all(later <= earlier for earlier, later in pairwise(drafts.survival))
        assert set(drafts.ids) <= set(prediction)
        assert drafter.draft(most) == drafts, "asking changes nothing"
        drafter.extend([token])


def test_drafts_end_where_they_are_too_unlikely() -> None:
    drafter = PredictionDrafter(TEXT)
    assert len(drafter.draft(31, least=0.7).ids) < 4
    assert drafter.draft(31, least=1.0).ids == ()
    drafter.extend(TEXT[:200])
    assert len(drafter.draft(31, least=0.7).ids) == 31


def test_a_long_prediction_becomes_known_in_parts_of_bounded_size() -> None:
    """No session waits while another one's prediction is read."""
    long = [number % 997 for number in range(100_000)]
    drafter = PredictionDrafter(long)
    known = []
    for token in long[:5]:
        drafter.extend([token])
        known.append(drafter._num_indexed)
    assert known == [512, 1024, 1536, 2048, 2560]
    assert len(drafter._reply) <= 64


@pytest.mark.parametrize("num_inserted", [0, 3, 40])
@pytest.mark.parametrize("had", [1, 2, 90, 300, 590])
def test_a_reply_that_was_begun_before_goes_on_where_it_is(num_inserted: int, had: int) -> None:
    reply = [*TEXT[:50], *NEW[:num_inserted], *TEXT[50:]]
    drafter = PredictionDrafter(TEXT)
    drafter.resume(reply[:had])
    drafter.extend(reply[had : had + 3])
    is_inside = 50 <= had + 3 < 50 + num_inserted
    if not is_inside:
        drafts = drafter.draft(31).ids
        assert drafts == tuple(reply[had + 3 : had + 3 + len(drafts)])
        assert len(drafts) >= min(5, len(reply) - had - 3)


def test_resuming_takes_no_longer_for_a_longer_reply() -> None:
    long = [number % 997 for number in range(60_000)]
    drafter = PredictionDrafter(long)
    drafter.resume(long[:50_000])
    assert drafter.is_following
    assert drafter.draft(4).ids == tuple(long[50_000:50_004])
    assert len(drafter._reply) == 32
    assert sum(map(len, drafter._places.values())) == 512


def test_a_reply_longer_than_the_prediction_is_resumed_without_drafts() -> None:
    drafter = PredictionDrafter(TEXT[:10])
    drafter.resume(TEXT[:12])
    assert drafter.draft(31).ids == ()
    drafter.extend(TEXT[12:20])
    assert drafter.draft(31).ids == ()
