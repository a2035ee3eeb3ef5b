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
