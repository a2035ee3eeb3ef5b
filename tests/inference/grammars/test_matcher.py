"""Masks against their definition, and against themselves on every other way to the same place."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits

from outrider.errors import InvalidRequestError, InvalidSamplingError
from outrider.sampling.grammar import Grammar, GrammarKind
from services.inference.grammars import compiler
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.matcher import GrammarMatcher
from tests.inference.grammars.finite import (
    ENDS,
    LANGUAGES,
    PIECES,
    POOR_PIECES,
    POOR_TABLE,
    SPACED_PIECES,
    SPACED_TABLE,
    TABLE,
    is_forced,
    mask_of,
)

COMPILED = {grammar: compile_grammar(TABLE, grammar) for grammar in LANGUAGES}
POOR = {grammar: compile_grammar(POOR_TABLE, grammar) for grammar in LANGUAGES}
GRAMMARS = st.sampled_from(list(LANGUAGES))


def allowed_ids(matcher: GrammarMatcher) -> list[int]:
    return [int(token) for token in np.flatnonzero(matcher.allowed())]


def fresh_at(grammar: Grammar, ids: list[int]) -> GrammarMatcher:
    """At this place by the shortest way."""
    matcher = COMPILED[grammar].constraint()
    for token in ids:
        matcher.advance(token)
    return matcher


@given(GRAMMARS, st.data())
def test_masks_are_what_the_language_says(grammar: Grammar, data: st.DataObject) -> None:
    language, matcher, said = LANGUAGES[grammar], COMPILED[grammar].constraint(), b""
    while True:
        mask, expected = matcher.allowed(), mask_of(PIECES, language, said)
        ids = allowed_ids(matcher)
        if len(ids) == 1 and is_forced(language, said):
            assert expected[ids[0]], "of the ways to write what has to come, one"
        else:
            assert np.array_equal(mask, expected)
        token = data.draw(st.sampled_from(ids))
        matcher.advance(token)
        if token in ENDS:
            assert said in language
            return
        said += PIECES.words[token]


@given(GRAMMARS, st.data())
def test_nothing_is_forced_where_bytes_are_missing(grammar: Grammar, data: st.DataObject) -> None:
    language, matcher, said = LANGUAGES[grammar], POOR[grammar].constraint(), b""
    while (expected := mask_of(POOR_PIECES, language, said)).any():
        assert matcher.forced(4) == () or expected[list(ENDS)].all()
        assert np.array_equal(matcher.allowed(), expected)
        token = data.draw(st.sampled_from(allowed_ids(matcher)))
        matcher.advance(token)
        if token in ENDS:
            assert said in language
            return
        said += POOR_PIECES.words[token]
    with pytest.raises(InvalidSamplingError, match="vocabulary"):
        matcher.allowed()


@given(GRAMMARS, st.data())
def test_no_way_to_a_place_changes_the_mask_there(grammar: Grammar, data: st.DataObject) -> None:
    matcher, ids = COMPILED[grammar].constraint(), list[int]()
    drafts = st.lists(st.integers(0, PIECES.size - 1), max_size=4)
    while not (ids and ids[-1] in ENDS):
        for what in data.draw(st.lists(st.sampled_from("pvf"), max_size=3)):
            if what == "p":
                matcher.prepare(data.draw(drafts))
            elif what == "v":
                assert matcher.num_valid(guess := data.draw(drafts)) <= len(guess)
            else:
                forced = matcher.forced(data.draw(st.integers(0, 5)))
                assert matcher.num_valid(forced) == len(forced)
                matcher.prepare((*forced, *data.draw(drafts)))
        assert matcher._looks_ahead
        expected = allowed_ids(fresh_at(grammar, ids))
        assert allowed_ids(matcher) == expected
        ids.append(data.draw(st.sampled_from(expected)))
        matcher.advance(ids[-1])


@given(GRAMMARS, st.data())
def test_drafts_count_as_far_as_they_are_valid(grammar: Grammar, data: st.DataObject) -> None:
    language = LANGUAGES[grammar]
    matcher = COMPILED[grammar].constraint()
    reply = data.draw(st.sampled_from(sorted(language)))
    ids = PIECES.encode_reply(reply.decode())
    begin = data.draw(st.integers(0, len(ids)))
    for token in ids[:begin]:
        matcher.advance(token)
    drafts = [*ids[begin:], ENDS[0], 9]
    assert matcher.num_valid(drafts) == len(drafts) - 1, "nothing follows the end"
    wrong = data.draw(st.integers(0, len(ids) - begin))
    token = data.draw(st.integers(0, PIECES.size - 1))
    said = b"".join(PIECES.words[i] for i in ids[: begin + wrong])
    drafts[wrong] = token
    if not mask_of(PIECES, language, said)[token]:
        assert matcher.num_valid(drafts) == wrong


@given(GRAMMARS, st.data())
def test_what_is_forced_is_what_the_masks_allow(grammar: Grammar, data: st.DataObject) -> None:
    matcher = COMPILED[grammar].constraint()
    while True:
        forced = matcher.forced(8)
        matcher.prepare(forced)
        for token in forced:
            assert matcher.allowed()[token]
            matcher.advance(token)
            if token in ENDS:
                return
        token = data.draw(st.sampled_from(allowed_ids(matcher)))
        matcher.advance(token)
        if token in ENDS:
            return


def test_a_forced_reply_needs_no_choice_to_its_end() -> None:
    matcher = COMPILED[Grammar(GrammarKind.REGEX, "abcabc")].constraint()
    forced = matcher.forced(8)
    assert b"".join(PIECES.words[i] for i in forced[:-1]) == b"abcabc"
    assert forced[-1] == PIECES.usual_stop_id
    assert matcher.forced(1) == forced[:1] and matcher.forced(0) == ()


def test_ids_that_are_not_allowed_are_refused() -> None:
    grammar = Grammar(GrammarKind.REGEX, "(ab|abc|aab){1,2}")
    for ids in ([8], [0], [ENDS[0]], [7, 7, 7], [7, ENDS[0] - 2]):
        matcher = COMPILED[grammar].constraint()
        with pytest.raises(InvalidRequestError, match="not allowed by its grammar"):
            for token in ids:
                matcher.advance(token)


def test_grammars_that_cannot_be_rolled_back_are_followed_without_looking_ahead() -> None:
    grammar = Grammar(GrammarKind.LARK, 'start: head "c"\nhead[max_tokens=2]: /[ab]+/')
    matcher = compile_grammar(TABLE, grammar).constraint()
    assert matcher.forced(4) == () and matcher.num_valid([4]) == 0
    matcher.prepare([4, 5])
    for token in (4, 5, 6, ENDS[0]):
        assert matcher.allowed()[token]
        matcher.advance(token)


def test_where_no_piece_fits_the_reply_fails() -> None:
    matcher = compile_grammar(POOR_TABLE, Grammar(GrammarKind.REGEX, "abx?[yz]")).constraint()
    matcher.advance(4)
    matcher.advance(5)
    with pytest.raises(InvalidSamplingError, match="vocabulary"):
        matcher.allowed()


@pytest.mark.parametrize(
    ("kind", "text", "first", "replies"),
    [
        (GrammarKind.JSON_SCHEMA, '{"enum": [{"ab": 1}]}', {" {", "{", '{"', " "}, {'{"ab": 1}'}),
        (GrammarKind.REGEX, " {0,2}a", {" ", " a"}, {"a", " a", "  a"}),
    ],
)
def test_a_space_that_the_text_lacks_may_come_first(
    kind: GrammarKind, text: str, first: set[str], replies: set[str]
) -> None:
    compiled = compile_grammar(SPACED_TABLE, Grammar(kind, text))
    words = SPACED_PIECES.words
    begun = {words[i].decode() for i in allowed_ids(compiled.constraint())}
    assert begun == first
    said = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        ids = waiting.pop()
        matcher = compiled.constraint()
        for token in ids:
            matcher.advance(token)
        for token in allowed_ids(matcher):
            if token in ENDS:
                said.add(b"".join(words[i] for i in ids).decode().removeprefix(" "))
            else:
                waiting.append([*ids, token])
    assert said == replies


@pytest.mark.parametrize("text", ["", "ab c", " a", "12", "xyz", "aäb", "\n", "ab\nab", "-1-1"])
@pytest.mark.parametrize("table", [TABLE, SPACED_TABLE], ids=["plain", "spaced"])
def test_forced_text_is_cut_into_its_own_bytes(table: object, text: str) -> None:
    assert table in (TABLE, SPACED_TABLE)
    tokenizer = (TABLE if table is TABLE else SPACED_TABLE).tokenizer
    ids = tokenizer.tokenize_str(text)
    said = b"".join(PIECES.words[i] for i in ids)
    assert said == text.encode()


WIDE = Grammar(GrammarKind.REGEX, "c{5}|[ab]*a[ab]{40}c")
"""Each way through its second part takes the lexer to states of its own."""
A, B, C = (PIECES.words.index(piece) for piece in (b"a", b"b", b"c"))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> CompiledGrammar:
    limits = LLParserLimits(max_lexer_states=400, verbose_errors=False)
    monkeypatch.setattr(compiler, "LIMITS", limits)
    return compile_grammar(TABLE, WIDE)


def wear_out(compiled: CompiledGrammar) -> int:
    """One reply that is too long for the lexer; the number of its tokens."""
    matcher, chance, count = compiled.constraint(), random.Random(1), 0
    with pytest.raises(InvalidSamplingError, match="costs more"):
        while count < 2000:
            assert matcher.allowed()[[A, B]].all()
            matcher.advance(chance.choice((A, B)))
            count += 1
    return count


def test_a_reply_that_costs_too_much_takes_no_other_with_it(wide: CompiledGrammar) -> None:
    begun = wide.constraint()
    begun.advance(C)
    assert wear_out(wide) > 40
    assert wide.is_worn_out
    for matcher, said in ((begun, 1), (wide.constraint(), 0)):
        for _ in range(said, 5):
            assert matcher.allowed()[C]
            matcher.advance(C)
        assert allowed_ids(matcher) == list(ENDS)


def test_where_others_wore_the_lexer_out_ids_are_still_told_apart(wide: CompiledGrammar) -> None:
    right, wrong = wide.constraint(), wide.constraint()
    wear_out(wide)
    right.advance(C)
    assert allowed_ids(right) == allowed_ids(compile_at(WIDE, [C]))
    with pytest.raises(InvalidRequestError, match="not allowed by its grammar"):
        wrong.advance(PIECES.words.index(b"1"))


def test_who_would_let_the_others_wait_gets_no_lexer_of_its_own(
    wide: CompiledGrammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "MOST_ALONE_S", 0.0)
    wear_out(wide)
    assert wide.is_worn_out, "the next replies get the grammar anew"
    with pytest.raises(InvalidSamplingError, match="costs more"):
        wide.constraint().allowed()


def test_drafts_that_cost_too_much_end_no_reply(wide: CompiledGrammar) -> None:
    matcher, chance = wide.constraint(), random.Random(2)
    matcher.advance(C)
    expected = allowed_ids(compile_at(WIDE, [C]))
    others = [wide.constraint() for _ in range(20)]
    for other in others:
        drafts = [chance.choice((A, B)) for _ in range(60)]
        other.prepare(drafts)
        assert other.num_valid(drafts) <= len(drafts)
        assert other.forced(4) == ()
    assert not others[-1]._looks_ahead
    assert allowed_ids(others[-1]) == allowed_ids(compile_at(WIDE, []))
    assert allowed_ids(matcher) == expected


def compile_at(grammar: Grammar, ids: list[int]) -> GrammarMatcher:
    """At this place, with a lexer that knows nothing else."""
    matcher = compile_grammar(TABLE, grammar).constraint()
    for token in ids:
        matcher.advance(token)
    return matcher
