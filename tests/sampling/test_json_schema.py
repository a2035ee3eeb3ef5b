"""JSON schemas as they are enforced, and what is not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import from_response_format, json_schema
from outrider.sampling.json_schema import _LOOK_AROUND_FREE, enforceable, without_look_around
from tests.inference.grammars.test_compiler import accepts

INT = {"type": "integer"}
CAT = {"properties": {"k": {"const": "cat"}}, "required": ["k"]}
DOG = {"properties": {"k": {"enum": ["dog", "puppy"]}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        # Says nothing.
        ({"propertyNames": {"type": "string"}}, {}),
        ({"propertyNames": True, "uniqueItems": False}, {}),
        ({"propertyNames": {"description": "d", "format": "name"}}, {}),
        ({"uniqueItems": True, "maxItems": 1}, {"maxItems": 1}),
        ({"format": "starts_with", "pattern": "^a"}, {"pattern": "^a"}),
        ({"format": "date"}, {"format": "date"}),
        ({"if": {"type": "string"}}, {}),
        ({"then": {"type": "string"}, "else": INT}, {}),
        ({"if": INT, "then": {}, "else": True}, {}),
        ({"contains": INT, "minContains": 0}, {}),
        ({"maxContains": 3}, {}),
        ({"dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}}, {}),
        ({"unevaluatedProperties": True, "unevaluatedItems": {}}, {}),
        (
            {"unevaluatedProperties": False, "additionalProperties": INT},
            {"additionalProperties": INT},
        ),
        ({"not": False, "$dynamicAnchor": "x", "$recursiveAnchor": True}, {}),
        (
            {"contentSchema": {"uniqueItems": True}, "contentEncoding": "base64"},
            {"contentEncoding": "base64"},
        ),
        (
            {"$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "type": "null"},
            {"type": "null"},
        ),
        # Says the same in other words.
        ({"properties": {"a": {"not": {}}}}, {"properties": {"a": False}}),
        ({"unevaluatedProperties": False}, {"additionalProperties": False}),
        (
            {"prefixItems": [INT], "unevaluatedItems": False},
            {"prefixItems": [INT], "items": False},
        ),
        ({"oneOf": [INT]}, {"anyOf": [INT]}),
        ({"oneOf": [INT, {"type": "string"}]}, {"anyOf": [INT, {"type": "string"}]}),
        ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, {"anyOf": [{"const": 1}, {"enum": [2, 3]}]}),
        ({"oneOf": [CAT, DOG]}, {"anyOf": [CAT, DOG]}),
        (
            {
                "oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}],
                "$defs": {"C": CAT, "D": DOG},
            },
            {
                "anyOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}],
                "$defs": {"C": CAT, "D": DOG},
            },
        ),
        (
            {"anyOf": [INT], "oneOf": [CAT, DOG]},
            {"anyOf": [INT], "allOf": [{"anyOf": [CAT, DOG]}]},
        ),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
            {"properties": {"a": INT, "b": INT}, "additionalProperties": False},
        ),
        (
            {"propertyNames": {"$ref": "#/$defs/N"}, "$defs": {"N": {"pattern": "^k"}}},
            {
                "patternProperties": {"^k": {}},
                "additionalProperties": False,
                "$defs": {"N": {"pattern": "^k"}},
            },
        ),
        (
            {"propertyNames": {"minLength": 2}},
            {"patternProperties": {"^(?s:.){2,}$": {}}, "additionalProperties": False},
        ),
        ({"format": "uuid4"}, {"format": "uuid", "pattern": "^.{14}4.{4}[89abAB]"}),
        (
            {"pattern": "^(?=.{1,5}$)[a-z]+$", "allOf": [INT]},
            {"pattern": "^[a-z]+$", "allOf": [INT, {"pattern": "^(?:.{1,5}$)"}]},
        ),
        # Names of properties, and values, are no keywords.
        (
            {"properties": {"uniqueItems": INT, "not": INT}, "const": {"not": {}}},
            {"properties": {"uniqueItems": INT, "not": INT}, "const": {"not": {}}},
        ),
    ],
)
def test_a_schema_that_says_the_same(schema: dict[str, Any], enforced: dict[str, Any]) -> None:
    assert enforceable(schema) == (enforced, ())


@pytest.mark.parametrize(
    ("schema", "keyword", "path"),
    [
        (
            {"properties": {"a/b~": {"uniqueItems": True}}},
            "uniqueItems",
            "#/properties/a~1b~0/uniqueItems",
        ),
        ({"items": {"not": INT}}, "not", "#/items/not"),
        ({"anyOf": [INT, {"if": INT, "then": INT}]}, "if", "#/anyOf/1/if"),
        ({"$defs": {"D": {"contains": INT}}}, "contains", "#/$defs/D/contains"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", "#/dependentRequired"),
        ({"oneOf": [INT, {"type": "number"}]}, "oneOf", "#/oneOf"),
        ({"oneOf": [CAT, CAT]}, "oneOf", "#/oneOf"),
        ({"oneOf": [CAT, {"properties": DOG["properties"]}]}, "oneOf", "#/oneOf"),
        ({"pattern": "^a(?!b)"}, "pattern", "#/pattern"),
        ({"pattern": r"(a)\1"}, "pattern", "#/pattern"),
        ({"pattern": "^(?=a)b|c"}, "pattern", "#/pattern"),
        (
            {"patternProperties": {"(?<=a)b": {}}},
            "patternProperties",
            "#/patternProperties/(?<=a)b",
        ),
        ({"propertyNames": {"not": INT}}, "propertyNames", "#/propertyNames"),
        (
            {"propertyNames": {"pattern": "^k"}, "properties": {"a": {}}},
            "propertyNames",
            "#/propertyNames",
        ),
        (
            {"unevaluatedProperties": False, "allOf": []},
            "unevaluatedProperties",
            "#/unevaluatedProperties",
        ),
        ({"$dynamicRef": "#x"}, "$dynamicRef", "#/$dynamicRef"),
    ],
)
def test_what_is_not_enforced_is_named_by_keyword_and_path(
    schema: dict[str, Any], keyword: str, path: str
) -> None:
    whole = {"type": "object", "properties": {"x": schema}} if "$defs" not in schema else schema
    place = path if "$defs" in schema else path.replace("#", "#/properties/x", 1)
    assert json_schema(whole).unenforced == (keyword,)
    with pytest.raises(InvalidSamplingError, match=re.escape(f"{keyword} at {place} cannot")):
        json_schema(whole, strict=True)
    for strict in (None, False, True):
        wanted = {"type": "json_schema", "json_schema": {"schema": whole, "strict": strict}}
        if strict:
            with pytest.raises(InvalidSamplingError, match="cannot be enforced"):
                from_response_format(wanted)
        else:
            assert from_response_format(wanted) == json_schema(whole)


def test_brackets_in_classes_and_escapes_are_no_look_around() -> None:
    for pattern in (r"[(?=]", r"\(?!", r"[]\](?!a]", r"[^](?=]", r"a\\1"):
        assert without_look_around(pattern) == [pattern]


@given(st.data())
@pytest.mark.parametrize("pattern", _LOOK_AROUND_FREE)
def test_patterns_of_libraries_match_the_same_without_look_around(
    pattern: str, data: st.DataObject
) -> None:
    letters = st.text(st.sampled_from("aB3+-.@'_PTYMDHSW,"), max_size=12)
    text = data.draw(letters | st.from_regex(_LOOK_AROUND_FREE[pattern], fullmatch=True))
    (other,) = without_look_around(pattern)
    assert bool(re.search(pattern, text)) == bool(re.search(other, text))


@pytest.mark.parametrize(
    ("schema", "has", "has_not"),
    [
        ({"format": "date", "pattern": "^2024"}, ["2024-02-01"], ["2023-02-01", "2024-13-01"]),
        ({"format": "emoji", "pattern": "^[a-c]+$"}, ["abc"], ["d", ""]),
        ({"pattern": "^$|^(?:ab)+$"}, ["", "abab"], ["a"]),
        ({"pattern": "mid"}, ["amidb", "mid"], ["mi"]),
        ({"pattern": r"^(?=.{1,3}\.?$)[a-z.]+$"}, ["abc", "abc."], ["abcd", "A"]),
        (
            {"format": "uuid4"},
            ["9f6e1a2b-1c2d-4e3f-8a4b-5c6d7e8f9a0b"],
            ["9f6e1a2b-1c2d-1e3f-8a4b-5c6d7e8f9a0b"],
        ),
    ],
)
def test_formats_and_patterns_hold_together(
    schema: dict[str, Any], has: list[str], has_not: list[str]
) -> None:
    grammar = json_schema({"type": "string"} | schema)
    assert [it for it in has if not accepts(grammar, f'"{it}"')] == []
    assert [it for it in has_not if accepts(grammar, f'"{it}"')] == []


def test_names_from_a_list_hold() -> None:
    schema = {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT}
    grammar = json_schema(schema)
    assert accepts(grammar, '{"a": 1}') and accepts(grammar, '{"a": 1, "b": 2}')
    assert not accepts(grammar, '{"c": 1}') and not accepts(grammar, '{"a": "x"}')
