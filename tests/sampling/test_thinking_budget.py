"""Limits of reasoning, over a vocabulary of one token per letter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidRequestError
from outrider.reply_parsing.formats import ReasoningTags, ReplyFormat
from outrider.reply_parsing.parser import read_reply
from outrider.reply_parsing.reasoning import ReasoningMeter, begins_in_reasoning
from outrider.sampling.constraint import Mask
from outrider.sampling.thinking_budget import ThinkingBudget

LETTERS = "abcdefghijklmnopqrstuvwxyz<>/\n é"
TAGS = ReasoningTags("<t>", "</t>")
SIZE = len(LETTERS)


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(letter) for letter in text]


def text_of(ids: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in ids)


def bytes_of(token: int) -> bytes:
    return LETTERS[token].encode()


def meter(*, begins: bool = False) -> ReasoningMeter:
    return ReasoningMeter(TAGS, bytes_of, begins_in_reasoning=begins)


def end_ids(num_chars: int) -> tuple[int, ...]:
    return tuple(ids_of(TAGS.end[num_chars:]))


def budget(max_tokens: int, said: str = "", *, begins: bool = False) -> ThinkingBudget:
    """Behind these committed letters."""
    made = ThinkingBudget(max_tokens, end_ids, meter(begins=begins), SIZE)
    for token in ids_of(said):
        assert made.allowed()[token]
        made.advance(token)
    return made


def written(max_tokens: int, wanted: str, *, begins: bool = False) -> str:
    """What is written where the model wants to write this."""
    made, left, reply = budget(max_tokens, begins=begins), list(wanted), ""
    while left:
        mask = made.allowed()
        letter = left[0]
        if not mask.all():
            (token,) = np.flatnonzero(mask)
            letter = LETTERS[token]
        if letter == left[0]:
            left.pop(0)
        made.advance(LETTERS.index(letter))
        reply += letter
    return reply


@pytest.mark.parametrize(
    ("max_tokens", "begins", "wanted", "reply"),
    [
        (3, False, "<t>abcde", "<t>abc</t>de"),
        (3, False, "<t>abc</t>d", "<t>abc</t>d"),
        (3, False, "<t>ab", "<t>ab"),
        (7, False, "<t>ab</t>cdefghi", "<t>ab</t>cdefghi"),
        (0, False, "<t>ab", "<t></t>ab"),
        (0, True, "ab", "</t>ab"),
        (2, True, "abc", "ab</t>c"),
        (0, False, "ab<t>cd", "ab<t>cd"),
        (3, False, "<t>a</t>xyz", "<t>a</t>xyz"),
        (3, False, "<t>a</xyz", "<t>a</t>xyz"),
        (1, True, "<xyz", "</t>xyz"),
    ],
)
def test_reasoning_is_ended_at_its_limit(
    max_tokens: int, begins: bool, wanted: str, reply: str
) -> None:
    assert written(max_tokens, wanted, begins=begins) == reply


@given(
    st.integers(0, 12),
    st.booleans(),
    st.lists(st.sampled_from(["<t>", "</t>", "</", "<", "a", "b", "\n", "é"]), max_size=20),
)
def test_no_reply_has_more_reasoning_than_its_limit(
    max_tokens: int, begins: bool, pieces: list[str]
) -> None:
    reply = written(max_tokens, "".join(pieces), begins=begins)
    read = read_reply(reply, ReplyFormat(None, TAGS, begins), "")
    # What a reply ends with may be the beginning of the tag.
    begun = [tag for at in range(len(TAGS.end)) if read.reasoning.endswith(tag := TAGS.end[:at])]
    assert len(read.reasoning) <= max_tokens + max(map(len, begun))
    counted = meter(begins=begins)
    for token in ids_of(reply):
        counted.push(token)
    # The end tag of more than one token counts until it is whole.
    assert counted.num_tokens <= max_tokens + len(TAGS.end)


@given(st.integers(0, 6), st.booleans(), st.text(alphabet="<t>/ab", max_size=20), st.data())
def test_it_is_a_function_of_what_was_committed(
    max_tokens: int, begins: bool, wanted: str, data: st.DataObject
) -> None:
    """So that a replica that goes on behind any of it allows the same."""
    reply = written(max_tokens, wanted, begins=begins)
    at = data.draw(st.integers(0, len(reply)))
    ahead = budget(max_tokens, begins=begins)
    for token in ids_of(reply[:at]):
        ahead.num_valid(ids_of(data.draw(st.text(alphabet="<t>/ab", max_size=4))))
        ahead.forced(3)
        ahead.advance(token)
    again = budget(max_tokens, reply[:at], begins=begins)
    assert (again.allowed() == ahead.allowed()).all()
    assert again.forced(9) == ahead.forced(9) and again.allows_all == ahead.allows_all


def test_what_goes_on_in_reasoning_that_is_used_up_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="token 5 of the reply"):
        budget(2, "<t>ab").advance(LETTERS.index("c"))


def test_the_end_is_drafted_and_other_drafts_are_cut() -> None:
    used_up = budget(2, "<t>ab")
    assert text_of(used_up.forced(9)) == "</t>" and text_of(used_up.forced(2)) == "</"
    assert used_up.num_valid(ids_of("</t>abc")) == 7
    assert used_up.num_valid(ids_of("</a")) == 2 and used_up.num_valid(ids_of("ab")) == 0
    open_ = budget(4, "<t>ab")
    assert open_.forced(9) == () and open_.num_valid(ids_of("abcd")) == 2
    ending = budget(4, "<t>ab</")
    assert text_of(ending.forced(9)) == "t>", "the rest of what has begun"
    answering = budget(4, "<t>ab</t>c")
    assert answering.num_valid(ids_of("abcdefg")) == 7 and answering.allows_all


class Grammar:
    """Allows one id, and notes what it is asked."""

    def __init__(self, token: int) -> None:
        self.allows_all = False
        self.said: list[int] = []
        self._mask: Mask = np.arange(SIZE) == token

    def allowed(self) -> Mask:
        return self._mask

    def advance(self, token: int) -> None:
        self.said.append(token)

    def prepare(self, drafts: Sequence[int]) -> None:
        self.said.append(-len(drafts))

    def num_valid(self, drafts: Sequence[int]) -> int:
        return min(1, len(drafts))

    def forced(self, max_tokens: int) -> tuple[int, ...]:
        return (0,)[:max_tokens]


def test_a_grammar_holds_wherever_the_limit_does_not() -> None:
    grammar = Grammar(ids_of("a")[0])
    made = ThinkingBudget(1, end_ids, meter(begins=True), SIZE, grammar)
    assert not made.allows_all and made.allowed() is grammar._mask
    assert made.forced(2) == (0,) and made.num_valid(ids_of("aa")) == 1
    made.prepare((1, 2))
    made.advance(ids_of("a")[0])
    assert text_of(np.flatnonzero(made.allowed()).tolist()) == "<"
    for token in ids_of("</t>"):
        made.advance(token)
    assert made.allowed() is grammar._mask
    assert grammar.said == [-2, *ids_of("a</t>")]


def test_a_prompt_tells_whether_its_reply_begins_in_reasoning() -> None:
    for prompt, begins in (("x<t>", True), ("x<t>\n ", True), ("<t>x", False), ("", False)):
        assert begins_in_reasoning(TAGS, ids_of(prompt), bytes_of) is begins
