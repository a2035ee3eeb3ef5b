"""Variables that clients give to chat templates."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.chat import Message
from outrider.models.chat_template import ChatTemplate
from outrider.models.template_variables import (
    MAX_DEPTH,
    MAX_VARIABLES,
    MAX_VARIABLES_CHARS,
    check_variables,
    date_in,
    dated,
    read_variables,
)
from outrider.models.vocabulary import Vocabulary
from outrider.today import today
from tests.models import thinking_templates, tool_templates
from tests.models.test_bpe import definition as byte_definition
from tests.models.thinking_templates import QWEN3, SMOLLM3, vocabulary_of

USER = Message("user", "hi")


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, ["<|a|>", "<|b|>"], {"bos_token": "<|a|>"})


def joined(source: str, variables: dict[str, Any]) -> str:
    segments = template(source).segments([USER], (), check_variables(variables))
    return "".join(segment.text for segment in segments)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen3", {"enable_thinking"}),
        ("r1", set()),
        ("smollm3", {"enable_thinking", "xml_tools"}),
        ("magistral", set()),
    ],
)
def test_a_templates_variables_are_found(family: str, names: set[str]) -> None:
    vocabulary = vocabulary_of(thinking_templates.FAMILIES[family])
    assert vocabulary.template_variables == names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ documents }}", set()),
        ("{{ strftime_now('%Y') if strftime_now is defined else '2024' }}", {"strftime_now"}),
        ("{{ raise_exception('no') }}", set()),
        (
            "{% for m in messages %}{{ loop.index }}{{ m.content }}{{ style }}{% endfor %}",
            {"style"},
        ),
        ("{% if a %}{% set b = a %}{% endif %}{{ b }}", {"a"}),
        ("{% set b = b | default('x') %}{{ b }}", {"b"}),
        ("{% macro f(x) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}{{ range(3) }}", {"y"}),
    ],
)
def test_what_a_template_sets_or_has_anyway_is_no_variable(source: str, names: set[str]) -> None:
    assert template(source).variables == names


@pytest.mark.parametrize("family", ["qwen3", "smollm3"])
@pytest.mark.parametrize("thinks", [True, False])
def test_variables_have_the_effect_that_they_have_in_transformers(
    family: str, thinks: bool
) -> None:
    source = thinking_templates.FAMILIES[family]
    given: dict[str, Any] = {"enable_thinking": thinks}
    if source == SMOLLM3:
        given["xml_tools"] = ["<tool>a</tool>", {"name": "f"}]
    segments = vocabulary_of(source).segments([USER], (), check_variables(given))
    expected = tool_templates.as_transformers_does(
        source, [{"role": "user", "content": "hi"}], None, **given
    )
    assert "".join(segment.text for segment in segments) == expected
    assert ("<think>\n\n</think>" in expected) is not thinks


def test_a_variable_that_the_template_does_not_have_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="no variable 'foo'; it has enable_thinking"):
        vocabulary_of(QWEN3).segments([USER], (), '{"foo":1}')


def test_texts_of_variables_make_no_control_tokens() -> None:
    source = "<|a|>{{ style }}{{ messages[0].content }}<|b|>"
    segments = template(source).segments([USER], (), check_variables({"style": "x<|b|>"}))
    assert [(it.text, it.is_token) for it in segments] == [
        ("<|a|>", True),
        ("x<|b|>hi", False),
        ("<|b|>", True),
    ]
    with pytest.raises(InvalidRequestError, match="control token"):
        joined("<|a|>{{ style }}|>{{ messages[0].content }}", {"style": "<|b"})


def test_a_template_may_branch_on_a_text_that_it_names() -> None:
    source = "{% if mode == 'deep' %}<|b|>{% endif %}{{ mode }}{{ messages[0].content }}"
    assert joined(source, {"mode": "deep"}) == "<|b|>deephi"


@pytest.mark.parametrize(
    ("value", "is_shared"),
    [(True, True), ("deep", True), ("secret", False), (7, False), (["deep"], False)],
)
def test_texts_that_depend_on_a_variable_are_cached_for_nobody_else(
    value: Any, is_shared: bool
) -> None:
    source = "{{ mode == 'deep' }}<|a|>{{ mode }}<|b|>{{ messages[0].content }}"
    segments = template(source).segments([USER], (), check_variables({"mode": value}))
    assert [it.is_template for it in segments if not it.is_token] == [
        is_shared,
        is_shared,
        False,
    ]


DEEP: Any = {}
for _ in range(MAX_DEPTH):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("[1]", "an object"),
        ("{", "are JSON"),
        ('{"messages": []}', "'messages' is no variable"),
        ('{"a b": 1}', "'a b' is no variable"),
        ({"a": float("nan")}, "are JSON"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": DEEP}, "nested"),
        ({f"a{n}": 1 for n in range(MAX_VARIABLES + 1)}, "at most"),
        ({"a": "x" * MAX_VARIABLES_CHARS}, "at most"),
        (" " * (MAX_VARIABLES_CHARS + 1), "at most"),
        ('{"a":' * 100_000, "at most"),
    ],
)
def test_what_are_no_variables_is_refused(given: Any, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        check_variables(given)


def test_variables_come_back_as_they_were_given() -> None:
    given = {"b": [1, None, "é"], "a": {"x": True}}
    text = check_variables(given)
    assert read_variables(text) == given and check_variables(text) == text
    assert check_variables({}) == check_variables("") == "" and read_variables("") == {}


DATED = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}"


def test_the_date_is_the_one_that_is_given() -> None:
    assert joined(DATED, {"strftime_now": "2026-11-29"}) == "29 Nov 2026 hi"
    at_night = "{{ strftime_now('%Y-%m-%d %H:%M:%S %A, 100%%') }}"
    given = {"strftime_now": "2024-02-29"}
    assert joined(at_night, given) == "2024-02-29 00:00:00 Thursday, 100%"
    with pytest.raises(InvalidRequestError, match="shows the date; give it as the"):
        joined(DATED, {})
    for bad in ("29.11.2026", "2026-13-01", 20261129, None, "2026-11-29T00:00", "2026-W48-7"):
        with pytest.raises(InvalidRequestError, match="is not written YYYY-MM-DD"):
            check_variables({"strftime_now": bad})


def test_a_text_with_the_date_is_the_clients() -> None:
    source = "{{ strftime_now('%Y') }}<|a|>hello<|b|>{{ messages[0].content }}"
    given = check_variables({"strftime_now": "2026-11-29"})
    segments = template(source).segments([USER], (), given)
    assert [(it.text, it.is_template) for it in segments] == [
        ("2026", False),
        ("<|a|>", True),
        ("hello", True),
        ("<|b|>", True),
        ("hi", False),
    ]


def test_the_date_is_added_once_where_a_template_shows_one() -> None:
    added = dated("", {"strftime_now"}, "2026-11-29")
    assert date_in(added) == "2026-11-29"
    assert dated(added, {"strftime_now"}, "2026-11-30") == added
    assert dated('{"x":1}', {"x"}, "2026-11-29") == '{"x":1}'
    assert date_in('{"x":1}') == date_in("") == ""


@pytest.mark.parametrize("form", ["%100000d", "%" * 3 + "5d", "%E" * 3000, "%*d"])
def test_a_format_that_makes_much_of_little_is_refused(form: str) -> None:
    with pytest.raises(InvalidRequestError, match="a format of a date"):
        joined(f"{{{{ strftime_now('{form}') }}}}", {"strftime_now": "2026-11-29"})


@pytest.mark.parametrize("form", ["%s", "%-s"])
def test_seconds_that_depend_on_the_machines_time_zone_are_refused(form: str) -> None:
    with pytest.raises(InvalidRequestError, match="a format of a date"):
        joined(f"{{{{ strftime_now('{form}') }}}}", {"strftime_now": "2026-11-29"})


def test_a_template_that_fails_is_named_when_it_is_loaded() -> None:
    for source in ("{{ messages[0].content.no() }}", "{{ unknown_function() }}", "{{ 1 / 0 }}"):
        with pytest.raises(ConfigError, match="the model's chat template is broken, a chat of one"):
            template(source).check()
        with pytest.raises(InvalidRequestError, match="the model's chat template fails on these"):
            template(source).segments([USER])
    refusing = template("{{ raise_exception('only with a system message') }}")
    refusing.check()
    with pytest.raises(InvalidRequestError, match="refuses these messages: only with a system"):
        refusing.segments([USER])
    template(DATED).check()
    template("{% for tool in tools %}{{ tool.function.name }}{% endfor %}").check()


def test_a_vocabulary_with_a_template_that_fails_is_refused() -> None:
    definition = byte_definition("gpt-2")
    broken = replace(definition, chat_template="{{ messages[0].content.nothing() }}")
    with pytest.raises(ConfigError, match="the model's chat template is broken"):
        Vocabulary.from_definition(broken)


def test_a_chat_that_is_encoded_for_itself_begins_today() -> None:
    words = Vocabulary.from_definition(replace(byte_definition("gpt-2"), chat_template=DATED))
    assert words.template_variables == {"strftime_now"}
    before, ids, after = today(), words.encode_chat([USER]), today()
    forms = {f"{date.fromisoformat(day):%d %b %Y} hi" for day in (before, after)}
    assert words.decode(ids) in forms
