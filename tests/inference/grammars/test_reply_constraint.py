"""Grammars behind what a model thinks, with tags that are control tokens, tokens or text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import InvalidSamplingError
from outrider.models.vocabulary import Vocabulary
from outrider.reply_parsing.formats import HARMONY_TAGS, REASONING_TAGS, ReasoningTags
from outrider.sampling.constraint import Constraint
from outrider.sampling.grammar import Grammar, GrammarKind
from outrider.sampling.params import SamplingParams
from services.inference.grammars.reply_constraint import constraint_of
from services.inference.grammars.token_table import TokenTable
from tests.models import thinking_templates, tool_templates
from tests.models.thinking_templates import FAMILIES, reply_ids
from tests.models.tool_templates import HARMONY

VOCABULARIES = {name: thinking_templates.vocabulary_of(it) for name, it in FAMILIES.items()}
TABLES = {name: TokenTable(it) for name, it in VOCABULARIES.items()}
JSON = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer"}')
REGEX = Grammar(GrammarKind.REGEX, "[0-9]+!")


def sampling_of(family: str, grammar: Grammar | None, max_tokens: int = -1) -> SamplingParams:
    tags = REASONING_TAGS[family == "magistral"]
    return SamplingParams(
        grammar=grammar, reasoning_tags=tags, max_thinking_tokens=max_tokens, special_tokens=True
    )


def said(constraint: Constraint, vocabulary: Vocabulary, reply: str) -> str:
    """As much of a reply as may be said."""
    at = ""
    for token in reply_ids(vocabulary, reply):
        if not constraint.allowed()[token]:
            return at
        constraint.advance(token)
        at += vocabulary.token_bytes(token).decode() if token not in vocabulary.stop_ids else "."
    return at


@pytest.mark.parametrize("grammar", [JSON, REGEX], ids=["json", "regex"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_may_think_first(family: str, grammar: Grammar) -> None:
    vocabulary, tags = VOCABULARIES[family], REASONING_TAGS[family == "magistral"]
    sampling = sampling_of(family, grammar)
    answer = "12!" if grammar is REGEX else "12"
    prompt = vocabulary.encode("x")
    for reply in (answer, f"{tags.begin}\nHm 7.\n{tags.end}\n\n{answer}"):
        constraint = constraint_of(TABLES[family], sampling, prompt)
        assert constraint is not None
        assert said(constraint, vocabulary, reply) == reply + "."
    open_prompt = reply_ids(vocabulary, f"x{tags.begin}\n")[:-1]
    reply = f"Hm 7.\n{tags.end}\n\n{answer}"
    constraint = constraint_of(TABLES[family], sampling, open_prompt)
    assert constraint is not None
    assert said(constraint, vocabulary, reply) == reply + ".", "the prompt began it"
    broken = f"{tags.begin}x{tags.end}Hm"
    constraint = constraint_of(TABLES[family], sampling, prompt)
    assert constraint is not None
    assert said(constraint, vocabulary, broken) == broken.removesuffix("Hm")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_limit_of_reasoning_holds_with_a_grammar(family: str) -> None:
    vocabulary, tags = VOCABULARIES[family], REASONING_TAGS[family == "magistral"]
    for grammar in (None, REGEX):
        constraint = constraint_of(TABLES[family], sampling_of(family, grammar, 3), ())
        assert constraint is not None
        assert said(constraint, vocabulary, f"{tags.begin}abcd") == f"{tags.begin}abc"
        end = TABLES[family].ids_of(tags.end)
        assert constraint.forced(9) == end
        for token in end:
            constraint.advance(token)
        assert said(constraint, vocabulary, "12!")[:3] == "12!"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_limit_within_a_character_holds_behind_it_with_a_grammar(family: str) -> None:
    vocabulary, table = VOCABULARIES[family], TABLES[family]
    tags = REASONING_TAGS[family == "magistral"]
    begin, thought = table.ids_of(tags.begin), vocabulary.encode("é🙂é")
    assert len(thought) == 8, "each byte is a token"
    for max_tokens, num_thought in ((1, 2), (2, 2), (3, 6), (5, 6), (6, 6), (7, 8)):
        constraint = constraint_of(table, sampling_of(family, REGEX, max_tokens), ())
        assert constraint is not None
        for token in begin:
            constraint.advance(token)
        for token in thought[:num_thought]:
            assert constraint.forced(9) == ()
            assert constraint.num_valid(thought) <= max_tokens
            assert constraint.allowed()[token]
            constraint.advance(token)
        for token in table.ids_of(tags.end):
            assert list(constraint.allowed().nonzero()[0]) == [token]
            constraint.advance(token)
        assert said(constraint, vocabulary, "12!") == "12!."


def test_a_tag_of_control_tokens_and_a_word() -> None:
    """gpt-oss's."""
    vocabulary = tool_templates.vocabulary_of(HARMONY)
    table = TokenTable(vocabulary)
    thought = f"{HARMONY_TAGS.begin}Hm 7.{HARMONY_TAGS.end}"
    for limit, reply in ((-1, "12!"), (-1, f"{thought}12!"), (3, f"{thought}12!"), (-1, "<|ch")):
        sampling = SamplingParams(
            grammar=REGEX,
            reasoning_tags=HARMONY_TAGS,
            max_thinking_tokens=limit,
            special_tokens=True,
        )
        constraint = constraint_of(table, sampling, vocabulary.encode("x"))
        assert constraint is not None
        most = {"<|ch": "", "12!": "12!."}.get(reply, f"{reply}.")
        if limit >= 0:
            most = f"{HARMONY_TAGS.begin}Hm "
        assert said(constraint, vocabulary, reply) == most


def test_without_tags_nothing_is_reasoning() -> None:
    table = TABLES["qwen3"]
    bare = replace(sampling_of("qwen3", REGEX, 3), reasoning_tags=None)
    constraint = constraint_of(table, bare, ())
    assert constraint is not None
    assert said(constraint, VOCABULARIES["qwen3"], "<think>") == ""
    assert constraint_of(table, replace(bare, grammar=None), ()) is None


def test_tags_are_tokens_where_the_vocabulary_has_them() -> None:
    think = REASONING_TAGS[0]
    assert len(TABLES["qwen3"].ids_of(think.end)) == 1
    assert TABLES["qwen3"].control_id(think.end) is None, "a token, and no control token"
    assert TABLES["magistral"].control_id("[/THINK]") is not None
    text = TABLES["r1"].ids_of(think.end)
    assert VOCABULARIES["r1"].decode(text) == "</think>" and len(text) == 8


def test_a_tag_that_cannot_be_written_is_refused() -> None:
    class Mute(Vocabulary):
        def encode_reply(self, text: str) -> list[int]:
            return []

    base = VOCABULARIES["r1"]
    table = TokenTable(Mute(base.tokenizer_json, base.facts))
    odd = SamplingParams(reasoning_tags=ReasoningTags("((", "))"), max_thinking_tokens=1)
    with pytest.raises(InvalidSamplingError, match="cannot write"):
        constraint_of(table, odd, ())
