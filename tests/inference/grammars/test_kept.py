"""Compiled grammars are kept for the group that sent them, no more than there is room for, and what
one group sends costs another none of its own."""

from __future__ import annotations

from outrider.sampling.grammar import Grammar, GrammarKind
from services.inference.grammars.compiler import CompiledGrammar, compile_grammar
from services.inference.grammars.kept import (
    MAX_KEPT,
    MAX_KEPT_OF_GROUP,
    MAX_USES,
    KeptGrammars,
)
from tests.inference.grammars.finite import TABLE

GROUP, OTHER = b"group", b"other"


def regex(number: int) -> Grammar:
    return Grammar(GrammarKind.REGEX, f"a{{{number + 1}}}")


def compiled(number: int = 0) -> CompiledGrammar:
    return compile_grammar(TABLE, regex(number))


def filled(kept: KeptGrammars, group: bytes, count: int) -> None:
    one = compiled()
    for number in range(count):
        kept.put(group, regex(number), one)


def test_a_group_keeps_so_many_and_drops_its_least_recently_used() -> None:
    kept = KeptGrammars()
    for number in range(MAX_KEPT_OF_GROUP + 3):
        kept.put(GROUP, regex(number), compiled(number))
        assert kept.take(GROUP, regex(0)) is not None, "used again and again"
    assert len(kept) == MAX_KEPT_OF_GROUP
    assert kept.take(GROUP, regex(1)) is None
    assert kept.take(GROUP, regex(4)) is not None


def test_a_group_loses_none_to_one_that_sends_many() -> None:
    kept = KeptGrammars()
    filled(kept, GROUP, 2)
    for group in (b"1", b"2", b"3", b"4"):
        filled(kept, group, 3 * MAX_KEPT_OF_GROUP)
    assert len(kept) == MAX_KEPT
    assert all(kept.take(GROUP, regex(number)) is not None for number in range(2))


def test_all_groups_together_have_a_bound() -> None:
    kept = KeptGrammars()
    for number in range(MAX_KEPT + 5):
        filled(kept, b"%d" % number, 1)
    assert len(kept) == len(kept._groups) == MAX_KEPT
    assert kept.take(b"0", regex(0)) is None, "the group that was there first"
    assert kept.take(b"5", regex(0)) is not None


def test_nothing_passes_between_groups() -> None:
    kept = KeptGrammars()
    kept.put(GROUP, regex(0), compiled())
    assert kept.take(OTHER, regex(0)) is None


def test_a_grammar_is_compiled_anew_after_many_replies() -> None:
    kept = KeptGrammars()
    kept.put(GROUP, regex(0), compiled())
    uses = 0
    while kept.take(GROUP, regex(0)) is not None:
        uses += 1
    assert uses == MAX_USES
    assert not len(kept) and not kept._groups


def test_a_grammar_whose_lexer_is_worn_out_is_compiled_anew() -> None:
    kept = KeptGrammars()
    worn_out = compiled()
    kept.put(GROUP, regex(0), worn_out)
    worn_out.alone()
    assert kept.take(GROUP, regex(0)) is None
    assert not len(kept) and not kept._groups
