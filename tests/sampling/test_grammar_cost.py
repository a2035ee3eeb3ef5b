"""What costs too much to read is refused before anything compiles it."""

from __future__ import annotations

import json

import pytest

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind, json_schema
from outrider.sampling.grammar_cost import (
    MAX_LINES,
    MAX_OPTIONAL_PARTS,
    MAX_SCHEMAS,
    _Levels,
)

LARK, REGEX, SCHEMA = GrammarKind.LARK, GrammarKind.REGEX, GrammarKind.JSON_SCHEMA
MANY = MAX_OPTIONAL_PARTS + 1


def chain(num_rules: int) -> str:
    """Each rule leads to the next one."""
    rules = "".join(f"r{n}: r{n + 1}\n" for n in range(num_rules - 2))
    return f"start: r0\n{rules}r{num_rules - 2}: " + '"a"'


def references(num: int) -> str:
    """Each names the next, as its property."""
    definitions: dict[str, object] = {
        f"{n}": {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}} for n in range(num)
    }
    definitions[f"{num}"] = {"type": "string"}
    return json.dumps({"$ref": "#/$defs/0", "$defs": definitions}, separators=(",", ":"))


def nested_targets(num: int) -> str:
    """Each is within the one before, and large."""
    inner: object = [[]] * 9_000
    for _ in range(num):
        inner = [inner]
    pointers = [{"$ref": "#/a" + "/0" * n} for n in range(num)]
    return json.dumps({"a": inner, "b": pointers}, separators=(",", ":"))


def one_target(num: int) -> str:
    """What is before the first slash of a reference says nothing."""
    pointers = [{"$ref": f"{n}/a"} for n in range(num)]
    return json.dumps({"a": [[]] * 9_000, "b": pointers}, separators=(",", ":"))


HOSTILE = {
    "a chain of rules": (LARK, chain(MAX_LINES + 1)),
    "a chain of short ones": (
        LARK,
        "start:r0" + "".join(f"\nr{n:x}:r{n + 1:x}" for n in range(5000)),
    ),
    "optional letters": (REGEX, "a?" * MANY),
    "stars": (REGEX, ".*" * MANY),
    "lazy counts": (REGEX, "a{0,1}" * MANY),
    "counts without a least": (REGEX, "a{ ,1}" * MANY),
    "choices of nothing": (REGEX, "(a|)" * MANY),
    "choices of nothing first": (REGEX, "(|a)" * MANY),
    "choices of nothing between": (REGEX, "(a||b)" * MANY),
    "behind a backslash": (REGEX, r"\\?" * MANY),
    "rules": (LARK, "start: " + '"a"? ' * MANY),
    "a terminal": (LARK, "start: T\nT: /" + r"\w*" * MANY + "/"),
    "a pattern": (SCHEMA, json.dumps({"items": [{"pattern": "^" + "a?" * MANY + "$"}]})),
    "patterns of properties": (SCHEMA, json.dumps({"patternProperties": {"a?" * MANY: {}}})),
    "several patterns": (
        SCHEMA,
        json.dumps({"anyOf": [{"pattern": f"{n}.*"} for n in range(MANY)]}),
    ),
    "a chain of references": (SCHEMA, references(334)),
    "the same within": (LARK, f"start: %json {references(334)}"),
    "references of another kind": (
        SCHEMA,
        json.dumps({"anyOf": [{"$ref": f"#a{n}"} for n in range(400)]}),
    ),
    "references that all meet": (
        SCHEMA,
        json.dumps({"anyOf": [{"$ref": f"#/anyOf?{n}"} for n in range(1500)]}),
    ),
    "references to large parts": (SCHEMA, nested_targets(100)),
    "whitespace": (SCHEMA, json.dumps({"x-guidance": {"whitespace_pattern": "a?" * MANY}})),
    "a schema within": (
        LARK,
        'start: %json {"pattern": "' + r"a\u003f" * MANY + '"}',
    ),
    "a schema behind a space": (LARK, 'start: %json\t {"pattern": "' + r"a\u002a" * MANY + '"}'),
    "many schemas": (LARK, "start: " + "%json {} " * (MAX_SCHEMAS + 1)),
    "no schema": (LARK, "start: %json {"),
    "a deep one": (LARK, "start: %json " + "[" * 30_000),
}


def test_what_many_references_lead_to_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_looks = 0
    looked = _Levels.__init__

    def noted(self: _Levels, value: object) -> None:
        nonlocal num_looks
        num_looks += 1
        looked(self, value)

    monkeypatch.setattr(_Levels, "__init__", noted)
    text = one_target(300)
    assert Grammar(SCHEMA, text).text == text
    assert num_looks == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_costly_is_refused(name: str) -> None:
    kind, text = HOSTILE[name]
    assert len(text) <= MAX_GRAMMAR_BYTES, "its length is not why"
    with pytest.raises(InvalidSamplingError) as refused:
        Grammar(kind, text)
    assert text[:20] not in refused.value.message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (LARK, chain(MAX_LINES)),
        (REGEX, ".*" * MAX_OPTIONAL_PARTS),
        (REGEX, r"\?" * MANY),
        (REGEX, "|".join(f"choice {n}" for n in range(4000))),
        (REGEX, "(a{1,9}b{3}){2,}" * MANY),
        (SCHEMA, json.dumps({"description": "Really? *Yes*. " * 1000, "const": "?" * MANY})),
        (LARK, "start: " + "%json {} " * MAX_SCHEMAS),
        (SCHEMA, references(330)),
        # Of many tools each has its own.
        (SCHEMA, json.dumps({"anyOf": [json.loads(references(3)) for _ in range(100)]})),
        (SCHEMA, json.dumps({"items": {"$ref": "#"}, "$ref": "#/a~1b/%41", "a/b": {"A": {}}})),
    ],
)
def test_what_costs_little_is_not(kind: GrammarKind, text: str) -> None:
    assert Grammar(kind, text).text


def test_a_property_may_have_any_name() -> None:
    json_schema({"properties": {"pattern": {}, "x-guidance": {}, "patternProperties": True}})
