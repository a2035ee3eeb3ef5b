"""How a model writes calls, by its template."""

from __future__ import annotations

import pytest

from outrider.reply_parsing.formats import CallSyntax, call_syntax_of, reasoning_tags_of
from tests.models import tool_templates


@pytest.mark.parametrize(
    ("family", "syntax"),
    [
        ("hermes", CallSyntax.HERMES),
        ("thinking", CallSyntax.HERMES),
        ("llama3", CallSyntax.LLAMA3_JSON),
        ("mistral", CallSyntax.MISTRAL),
        ("mistral_args", CallSyntax.MISTRAL_ARGS),
        ("harmony", CallSyntax.HARMONY),
    ],
)
def test_a_template_tells_the_syntax(family: str, syntax: CallSyntax) -> None:
    template = tool_templates.FAMILIES[family]
    assert call_syntax_of(template) is syntax
    assert (reasoning_tags_of(template) is not None) == (family in ("thinking", "harmony"))


def test_forms_that_are_not_known_are_none() -> None:
    assert call_syntax_of(tool_templates.PLAIN) is None
    assert call_syntax_of("<tool_call>\n<function=f>\n<parameter=x>") is None
    assert call_syntax_of("{{ tools }} <tool_calls>") is None
