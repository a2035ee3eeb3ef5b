"""Prompts in any number: none twice, of the length they say, the same in every run."""

from __future__ import annotations

import pytest

from bench.harness.prompts import KINDS, PromptSupply, load_prompts
from outrider.models.vocabulary import Vocabulary


@pytest.mark.parametrize("kind", KINDS)
def test_no_prompt_comes_twice_and_there_are_enough_for_a_run(kind: str) -> None:
    taken = PromptSupply(kind).take(700)
    assert len(set(taken)) == 700
    assert taken[:50] == PromptSupply(kind).take(50)


def test_taking_goes_on_where_it_stopped() -> None:
    supply, whole = PromptSupply("chat"), PromptSupply("chat").take(9)
    assert [*supply.take(4), *supply.take(5)] == whole
    assert supply.num_given == 9


def test_written_prompts_come_first() -> None:
    written = {prompt.text for prompt in load_prompts("code")}
    assert set(PromptSupply("code").take(len(written))) == written


def test_an_empty_supply_says_so() -> None:
    supply = PromptSupply("chat")
    with pytest.raises(RuntimeError, match="different chat prompts"):
        supply.take(100_000)


def test_no_part_is_left_unfilled() -> None:
    assert not [text for text in PromptSupply("chat").take(1300) if "{topic}" in text]
    assert not [text for text in PromptSupply("code").take(1400) if "{task}" in text]


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("document", 200, 700), ("long_document", 900, 2600)]
)
def test_documents_are_as_long_as_they_say(
    kind: str, least: int, most: int, vocabulary: Vocabulary
) -> None:
    lengths = sorted(len(vocabulary.encode(text)) for text in PromptSupply(kind).take(80))
    assert least <= lengths[0]
    assert lengths[-1] <= most
