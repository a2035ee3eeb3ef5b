"""The first word on a screen: when it is there, whether it is right, and since when it stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.first_word import FirstWord


def seen(*texts: tuple[str, str]) -> FirstWord:
    """Texts, committed and provisional, second by second; the last is the whole reply."""
    first = FirstWord()
    for now, (committed, provisional) in enumerate(texts):
        first.see(committed, provisional, float(now), is_whole=now == len(texts) - 1)
    return first


def times(*texts: tuple[str, str]) -> tuple[float | None, float | None, float | None]:
    """When a word was shown, the right one for good, and final."""
    first = seen(*texts)
    return first.shown_at, first.staying_at, first.final_at


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        # Without provisional text all three are the time at which it was committed.
        ((("", ""), ("Ray", ""), ("Rayleigh", ""), ("Rayleigh was", "")), (2.0, 2.0, 2.0)),
        ((("", ""), (" ", ""), (" The", "")), (2.0, 2.0, 2.0)),
        ((("**", ""), ("**Rome", ""), ("**Rome**", "")), (1.0, 1.0, 1.0)),
        # Half a word is none; where there are no spaces, a character is one.
        ((("", "hel"), ("hel", "lo"), ("hello", "")), (1.0, 1.0, 2.0)),
        ((("", "猫が"), ("", "猫"), ("猫", ""), ("猫は", "")), (0.0, 0.0, 2.0)),
        # What follows the first word does not matter.
        ((("", "The cat"), ("", "The"), ("The", ""), ("The sky", "")), (0.0, 0.0, 2.0)),
        # A reply without words.
        ((("", ""), (" ", "")), (None, None, None)),
        ((("", "..."), ("...", "")), (1.0, 0.0, 1.0)),
    ],
)
def test_when_the_first_word_is_there(
    texts: tuple[tuple[str, str], ...], told: tuple[float | None, ...]
) -> None:
    assert times(*texts) == told


def test_a_word_shown_early_stays_from_when_it_was_shown() -> None:
    first = seen(("", ""), ("", "The"), ("", "The sky"), ("The", " sky"), ("The sky", ""))
    assert (first.shown_at, first.staying_at, first.final_at) == (1.0, 1.0, 3.0)
    assert first.shown_early and first.shown_right


def test_a_word_taken_back_was_shown_but_did_not_stay() -> None:
    first = seen(("", "A cat"), ("", ""), ("The", ""), ("The cat", ""))
    assert (first.shown_at, first.staying_at, first.final_at) == (0.0, 2.0, 2.0)
    assert first.shown_early and not first.shown_right
    assert times(("", "A"), ("", ""), ("", "A"), ("A dog", "")) == (0.0, 2.0, 3.0)


def test_a_word_taken_back_before_another_character_followed_was_shown_too() -> None:
    assert not seen(("", "This"), ("", ""), ("The", ""), ("The cat", "")).shown_right
    assert seen(("", "The"), ("", ""), ("The", ""), ("The cat", "")).shown_right


def test_a_longer_word_is_another_word() -> None:
    first = seen(("", "There"), ("", "The"), ("The", " sky"), ("The sky", ""))
    assert (first.staying_at, first.shown_right) == (1.0, False)
    first = seen(("", "The"), ("", "There is"), ("There is", ""))
    assert (first.shown_at, first.shown_right) == (1.0, True), "it was not whole before"


def test_before_it_is_final_nothing_is_known() -> None:
    first = FirstWord()
    first.see("The", " sky", 1.0)
    first.see("The", " sky", 2.0)
    before = first.shown_at, first.staying_at, first.final_at
    assert before == (None, None, None), "a provisional character behind it ends no final word"
    first.see("The sk", "", 3.0)
    assert [first.shown_at, first.staying_at, first.final_at] == [1.0, 1.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 8), st.text("ab .猫", max_size=6)), max_size=12))
def test_the_times_are_in_order(steps: list[tuple[int, str]]) -> None:
    """Of any chat: `steps` are committed characters and the provisional text behind them."""
    reply = "ab. ba 猫b a"
    num_committed, texts = 0, [("", "")]
    for more, provisional in steps:
        num_committed = min(len(reply), num_committed + more)
        texts.append((reply[:num_committed], provisional))
    first = seen(*texts, (reply, ""))
    assert first.shown_at is not None
    assert first.staying_at is not None and first.final_at is not None
    assert first.shown_at <= first.final_at and first.shown_at <= first.staying_at
    assert first.shown_right or first.shown_early, "what is committed is right"
