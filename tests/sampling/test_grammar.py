"""What a grammar may be, before anybody compiles it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import (
    JSON_OBJECT,
    MAX_GRAMMAR_BYTES,
    MAX_SCHEMA_DEPTH,
    Grammar,
    GrammarKind,
    from_response_format,
    json_schema,
)
from outrider.sampling.params import SamplingParams

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"zebra": {}, "ant": {}}}


def nested(depth: int) -> str:
    """A schema with so many objects in each other, the outermost included."""
    return '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (GrammarKind.JSON_OBJECT, "{}", "no text"),
        (GrammarKind.JSON_SCHEMA, "", "no text"),
        (GrammarKind.REGEX, "", "no text"),
        (GrammarKind.LARK, "", "no text"),
        (GrammarKind.REGEX, "a" * (MAX_GRAMMAR_BYTES + 1), "more than"),
        (GrammarKind.REGEX, "ä" * (MAX_GRAMMAR_BYTES // 2 + 1), "more than"),
        (GrammarKind.REGEX, "a\0b", "NUL"),
        (GrammarKind.REGEX, "\ud800", "surrogate"),
        (GrammarKind.JSON_SCHEMA, "{'a': 1}", "not valid JSON"),
        (GrammarKind.JSON_SCHEMA, "[]", "an object|a JSON object"),
        (GrammarKind.JSON_SCHEMA, "true", "a JSON object"),
        (GrammarKind.JSON_SCHEMA, nested(MAX_SCHEMA_DEPTH + 1), "deep"),
        (GrammarKind.JSON_SCHEMA, "[" * 5000 + "]" * 5000, "not valid JSON|an object"),
        (GrammarKind.JSON_SCHEMA, '{"maximum": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_what_is_none_is_refused(kind: GrammarKind, text: str, says: str) -> None:
    with pytest.raises(InvalidSamplingError, match=says):
        Grammar(kind, text)


def test_as_large_as_allowed() -> None:
    assert Grammar(GrammarKind.REGEX, "a" * MAX_GRAMMAR_BYTES).text
    assert Grammar(GrammarKind.JSON_SCHEMA, nested(MAX_SCHEMA_DEPTH)).text


def test_properties_keep_their_order() -> None:
    assert json.loads(json_schema(SCHEMA).text) == SCHEMA
    assert json_schema(SCHEMA).text.index("zebra") < json_schema(SCHEMA).text.index("ant")


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": b"x"}, {"a": {1, 2}}])
def test_what_json_cannot_say(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidSamplingError, match="JSON"):
        json_schema(value)


def test_a_schema_that_holds_itself() -> None:
    value: dict[str, Any] = {}
    value["items"] = value
    with pytest.raises(InvalidSamplingError):
        json_schema(value)


def test_the_text_is_not_shown() -> None:
    secret = Grammar(GrammarKind.REGEX, "secret")
    assert "secret" not in repr(SamplingParams(grammar=secret))


def test_a_reply_that_may_not_end_has_no_grammar() -> None:
    with pytest.raises(InvalidSamplingError, match="ignore_eos"):
        SamplingParams(grammar=JSON_OBJECT, ignore_eos=True)


def test_response_formats() -> None:
    assert from_response_format({"type": "text"}) is None
    assert from_response_format({"type": "json_object"}) is JSON_OBJECT
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert from_response_format(asked) == json_schema(SCHEMA)
    as_llamacpp = {"type": "json_object", "schema": SCHEMA}
    assert from_response_format(as_llamacpp) == json_schema(SCHEMA)
    regex = from_response_format({"type": "regex", "grammar": "a+"})
    assert regex == Grammar(GrammarKind.REGEX, "a+")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"type": "yaml"},
        {"type": ["text"]},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema", "json_schema": {"schema": "{}"}},
        {"type": "lark"},
        {"type": "regex", "grammar": 3},
    ],
)
def test_formats_that_are_none(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidSamplingError):
        from_response_format(value)
