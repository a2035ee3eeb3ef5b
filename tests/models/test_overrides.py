"""A definition's chat template and stop tokens, and nothing else, change a vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.errors import ConfigError
from outrider.models.overrides import with_overrides
from outrider.models.vocabulary import Vocabulary
from tests.models.test_bpe import DEFINITION


def test_a_template_is_replaced_and_stop_tokens_are_added() -> None:
    more = replace(DEFINITION, control_ids=(0, 4), user_defined_ids=())
    assert with_overrides(more, "", ()) == replace(more, stop_ids=[0])
    changed = with_overrides(more, "{{ x }}", ("<x>", "<s>", "<x>"))
    assert (changed.chat_template, changed.stop_ids) == ("{{ x }}", [0, 4])
    before, after = (Vocabulary.from_definition(it) for it in (more, changed))
    assert before.digest != after.digest
    assert before.has_ids_of(after)
    assert not before.has_ids_of(Vocabulary.from_definition(DEFINITION)), "<x> is text there"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<eot>", "'<eot>' is not in the vocabulary; the first control tokens are <s>"),
        ("ab", "'ab' is no control token"),
        ("<x>", "'<x>' is no control token"),
    ],
)
def test_stop_tokens_are_control_tokens(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_overrides(DEFINITION, "", (text,))


def padded(count: int, name: str = "[PAD{}]") -> Vocabulary:
    tokens = [*DEFINITION.tokens, *(name.format(len(DEFINITION.tokens) + i) for i in range(count))]
    return Vocabulary.from_definition(replace(DEFINITION, tokens=tokens))


def test_how_many_ids_of_padding_there_are_is_no_difference() -> None:
    plain, more, most = padded(0), padded(3), padded(8)
    assert len({it.tokens_digest for it in (plain, more, most)}) == 3
    for one in (plain, more, most):
        assert {one.difference_of_ids(other) for other in (plain, more, most)} == {""}
    assert not plain.has_ids_of(more)


def test_the_first_difference_is_told_in_words() -> None:
    plain, own = padded(0), padded(2, "<own{}>")
    size = plain.size
    expected = f"one has {size} ids, the other {size + 2}; id {size} is '<own{size}>'"
    assert plain.difference_of_ids(own) == expected
    assert f"id {size} is '<own{size}>' in one and '[PAD{size}]' in the other" == (
        own.difference_of_ids(padded(2))
    )
    tokens = list(DEFINITION.tokens)
    other = Vocabulary.from_definition(
        replace(DEFINITION, control_ids=(), user_defined_ids=(), stop_ids=[])
    )
    difference = plain.difference_of_ids(other)
    assert difference.startswith("id 0 is ") and repr(tokens[0]) in difference
