"""Where the first word of a text ends, in scripts with and without spaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.word_boundaries import first_word_end


def first_word(text: str, *, is_whole: bool = False) -> str | None:
    end = first_word_end(text, is_whole=is_whole)
    return None if end is None else text[:end]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The sky", "The"),
        ("\n The, sky", "\n The"),
        ("don't stop", "don't"),
        ("**Rome** is", "**Rome"),
        ('{"name": 1}', '{"name'),
        ("- item", "- item"),
        ("3.14", "3"),
        ("snake_case()", "snake_case"),
        ("🚂 rolls on", "🚂 rolls"),
        ("猫が好き", "猫"),
        ("猫", "猫"),
        ("ก็ได้", "ก็"),
        ("हिन्दी में", "हिन्दी"),
        ("قراءة الكتب", "قراءة"),
        ("e\u0301te\u0301 ici", "e\u0301te\u0301"),
    ],
)
def test_a_word_ends_where_the_script_ends_it(text: str, word: str) -> None:
    if word != text:
        assert first_word(text) == word
    assert first_word(text, is_whole=True) == word.rstrip()


@pytest.mark.parametrize("text", ["", " ", "The", "**", "don'", "हिन्", "「"])
def test_a_word_that_may_grow_has_not_ended(text: str) -> None:
    assert first_word(text) is None


def test_a_whole_text_ends_its_word() -> None:
    assert first_word("The", is_whole=True) == "The"
    assert first_word("... ", is_whole=True) == "...", "without letters it is one word"
    assert first_word(" \n", is_whole=True) is None, "blanks are no word"


@given(st.text(), st.text())
def test_what_has_ended_stays_so_whatever_follows(text: str, more: str) -> None:
    end = first_word_end(text, is_whole=False)
    whole = first_word_end(text, is_whole=True)
    if end is not None and end < len(text):
        assert first_word_end(text + more, is_whole=False) == end == whole
