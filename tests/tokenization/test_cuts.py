"""The cutter: its parts, what it holds, its limit."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.errors import FrameTooLargeError
from outrider.tokenization.cuts import CutRule, Cutter

SPACES = CutRule.of("[a-z](?= )", ["<a b>", "<a", "c d e"])
TEXTS = st.lists(st.sampled_from(["a", "b", " ", "<a b>", "<", "c d e", "c d", "\n", "xyz "])).map(
    "".join
)


def cut(text: str, lengths: list[int], target_chars: int = 3) -> list[str]:
    cutter = Cutter(SPACES, target_chars=target_chars, max_chars=1000)
    parts: list[str] = []
    for length in [*lengths, len(text)]:
        parts += cutter.feed(text[:length])
        text = text[length:]
    return [*parts, *cutter.finish()]


@given(TEXTS, st.lists(st.integers(0, 7)), st.integers(1, 9))
@example("a<a b>a aaa", [3, 7], 4)
def test_parts_depend_on_the_text_alone(text: str, lengths: list[int], target_chars: int) -> None:
    parts = cut(text, lengths, target_chars)
    assert "".join(parts) == text
    assert parts == cut(text, [], target_chars)
    assert all(len(part) >= target_chars for part in parts[:-1])


@given(TEXTS, st.lists(st.integers(0, 7)))
def test_no_cut_lies_inside_an_added_token(text: str, lengths: list[int]) -> None:
    at = 0
    for part in cut(text, lengths, 1)[:-1]:
        at += len(part)
        assert text[at] == " "
        for atom in ("<a b>", "c d e"):
            starts = range(max(0, at - len(atom) + 1), at)
            assert not any(text.startswith(atom, start) for start in starts)


def test_every_part_ends_at_the_first_safe_place_behind_its_target() -> None:
    assert cut("ab cd ef gh ij klm n", []) == ["ab cd", " ef", " gh", " ij", " klm n"]


def test_a_place_that_a_coming_token_may_span_is_not_cut_at() -> None:
    cutter = Cutter(SPACES, target_chars=1, max_chars=100)
    assert cutter.feed("xc d") == []
    assert cutter.feed(" e a") == []
    assert cutter.feed(" aaaa") == ["xc d e", " a"]
    assert cutter.finish() == [" aaaa"]


def test_without_a_rule_the_text_is_one_part() -> None:
    cutter = Cutter(None, target_chars=2, max_chars=100)
    assert [cutter.feed("a b ") for _ in range(10)] == [[]] * 10
    assert cutter.num_held_chars == 40
    assert cutter.finish() == ["a b " * 10]
    assert cutter.num_held_chars == 0
    assert cutter.finish() == [""]


@pytest.mark.parametrize("rule", [SPACES, None])
def test_text_without_a_place_is_refused_at_the_limit(rule: CutRule | None) -> None:
    cutter = Cutter(rule, target_chars=10, max_chars=100)
    for _ in range(100):
        assert cutter.feed("x") == []
    with pytest.raises(FrameTooLargeError, match="at most 100"):
        cutter.feed("x")


def test_a_place_at_the_limit_is_found() -> None:
    cutter = Cutter(SPACES, target_chars=10, max_chars=100)
    assert cutter.feed("x" * 95 + " y") == []
    (part,) = cutter.feed(" z z")
    assert part == "x" * 95
