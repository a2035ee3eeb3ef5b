"""Two hundred different JSON schemas, the same in every run.

Of the shapes that JSONSchemaBench (arXiv 2501.10868) collected from function calls, settings and
web services, made here: each shape in as many variations as the number asks for. Texts and lists
in them are bounded, and what holds itself need not go on, so that a reply comes to an end.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

NUM_SCHEMAS: Final = 200
_TOPICS: Final = (
    "a river", "a book", "a train ticket", "a recipe", "a user account", "a football match",
    "a weather report", "a bank transfer", "a web server's settings", "a song", "a hotel booking",
    "a chess move", "a patient's visit", "a bug report", "a star", "a bicycle",
)  # fmt: skip
_NAMES: Final = (
    "name", "title", "identifier", "description", "count", "total_price", "createdAt", "is_active",
    "category", "owner", "e-mail", "größe", "x", "status_code", "tags", "phone_number",
)  # fmt: skip
_WORDS: Final = ("red", "green", "blue", "small", "large", "open", "closed", "pending", "über")
_FORMATS: Final = ("date", "time", "date-time", "uuid", "ipv4", "email", "duration")
_PATTERNS: Final = (
    "^[A-Z]{3}-[0-9]{4}$",
    "^#[0-9a-f]{6}$",
    "^v[0-9]\\.[0-9]{1,2}$",
    "^[a-z_]{2,9}$",
)


@dataclass(frozen=True, slots=True)
class Task:
    """A schema, and a question that a reply by it answers."""

    name: str
    prompt: str
    schema: Schema


def tasks(count: int = NUM_SCHEMAS) -> list[Task]:
    """The first `count`; every shape has its turn, no two schemas are alike."""
    seen, found = set[str](), list[Task]()
    for number in range(count):
        task = _task(number, random.Random(number))
        again = 0
        while (text := json.dumps(task.schema)) in seen:
            again += 1
            task = _task(number, random.Random(f"{number}, {again}"))
        seen.add(text)
        found.append(task)
    return found


def _task(number: int, chance: random.Random) -> Task:
    shape = _SHAPES[number % len(_SHAPES)]
    topic = _TOPICS[number % len(_TOPICS)]
    name = f"{shape.__name__.removeprefix('_')}-{number}"
    return Task(name, f"Describe {topic} as JSON.", shape(chance))


def _text(chance: random.Random) -> Schema:
    return {"type": "string", "maxLength": chance.choice((8, 16, 24))}


def _leaf(chance: random.Random) -> Schema:
    """A value without parts."""
    low = chance.randrange(-50, 50)
    return chance.choice(
        (
            _text(chance),
            {"type": "integer", "minimum": low, "maximum": low + chance.choice((9, 400, 99_999))},
            {"type": "boolean"},
            {"enum": chance.sample(_WORDS, 3)},
            {"type": ["boolean", "null"]},
            {"const": chance.choice(_WORDS)},
            {"enum": [1.5, 2.25, None, "none"]},
        )
    )


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _named(chance: random.Random, count: int) -> list[str]:
    return chance.sample(_NAMES, count)


def _flat(chance: random.Random) -> Schema:
    return _object({name: _leaf(chance) for name in _named(chance, chance.randrange(1, 6))})


def _optional(chance: random.Random) -> Schema:
    names = _named(chance, 4)
    return _object({name: _leaf(chance) for name in names}, required=names[:2])


def _nested(chance: random.Random) -> Schema:
    inner = _flat(chance)
    for name in _named(chance, chance.randrange(1, 3)):
        inner = _object({name: inner, "kind": _leaf(chance)})
    return inner


def _array(chance: random.Random) -> Schema:
    return {
        "type": "array",
        "items": _leaf(chance),
        "minItems": chance.randrange(1, 3),
        "maxItems": chance.randrange(3, 5),
    }


def _records(chance: random.Random) -> Schema:
    items = _object({name: _leaf(chance) for name in _named(chance, 2)})
    return _object({"items": {"type": "array", "items": items, "minItems": 1, "maxItems": 3}})


def _tuple(chance: random.Random) -> Schema:
    parts = [_leaf(chance) for _ in range(3)]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": 3, "maxItems": 3}


def _formats(chance: random.Random) -> Schema:
    kinds = chance.sample(_FORMATS, 2)
    return _object({kind: {"type": "string", "format": kind, "maxLength": 40} for kind in kinds})


def _patterns(chance: random.Random) -> Schema:
    chosen = chance.sample(_PATTERNS, 2)
    texts = [{"type": "string", "pattern": pattern} for pattern in chosen]
    return _object(dict(zip(("code", "label"), texts, strict=True)))


def _any_of(chance: random.Random) -> Schema:
    choices = [_flat(chance), {"type": "null"}, _text(chance)]
    return _object({"value": {"anyOf": choices}, "kind": _leaf(chance)})


def _tagged(chance: random.Random) -> Schema:
    """One of several objects, told by a constant."""
    kinds = [
        _object({"type": {"const": word}, name: _leaf(chance)})
        for word, name in zip(("one", "two"), _named(chance, 2), strict=True)
    ]
    return {"anyOf": kinds}


def _referenced(chance: random.Random) -> Schema:
    schema = _object({"first": {"$ref": "#/$defs/part"}, "second": {"$ref": "#/$defs/part"}})
    return schema | {"$defs": {"part": _object({_named(chance, 1)[0]: _leaf(chance)})}}


def _tree(chance: random.Random) -> Schema:
    """Lists in lists, each level by a reference: one that held itself a small model would go on
    with for ever."""
    label = {"enum": chance.sample(_WORDS, 3)}

    def level(inner: str) -> Schema:
        children = {"type": "array", "items": {"$ref": f"#/$defs/{inner}"}, "maxItems": 2}
        return _object({"label": label, "children": children})

    levels = {"node": level("twig"), "twig": level("leaf"), "leaf": _object({"label": label})}
    return {"$ref": "#/$defs/node", "$defs": levels}


def _chain(chance: random.Random) -> Schema:
    """What follows, or nothing, by references."""
    value = {"enum": chance.sample(_WORDS, 3)}

    def link(following: str) -> Schema:
        choice = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{following}"}]}
        return _object({"value": value, "next": choice})

    links = {"first": link("second"), "second": link("last"), "last": _object({"value": value})}
    return _object({"head": {"$ref": "#/$defs/first"}}) | {"$defs": links}


def _expression(chance: random.Random) -> Schema:
    """That holds itself: a value, or an operator with such an expression."""
    low = chance.randrange(0, 50)
    number = {"type": "integer", "minimum": low, "maximum": low + 9}
    operator = {"enum": chance.sample(("+", "-", "*", "/", "and", "or"), 3)}
    inner = {"anyOf": [number, {"$ref": "#/$defs/sum"}]}
    both = _object({"op": operator, "left": number, "right": inner})
    return {"anyOf": [number, {"$ref": "#/$defs/sum"}], "$defs": {"sum": both}}


def _numbers(chance: random.Random) -> Schema:
    """Fractions within bounds, of few digits."""
    low = chance.randrange(-9, 9)
    return _object(
        {
            "ratio": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
            "degrees": {"type": "number", "minimum": low, "maximum": low + 5, "multipleOf": 0.5},
            "count": {"type": "integer", "exclusiveMinimum": low, "maximum": low + 77},
        }
    )


def _matrix(chance: random.Random) -> Schema:
    size = chance.randrange(2, 4)
    low = chance.randrange(0, 5)
    cell = {"type": "integer", "minimum": low, "maximum": low + chance.choice((1, 9, 30))}
    row = {"type": "array", "items": cell, "minItems": size, "maxItems": size}
    return {"type": "array", "items": row, "minItems": 2, "maxItems": size}


def _open(chance: random.Random) -> Schema:
    """With properties that it names, and others of one kind."""
    named = _object({name: _leaf(chance) for name in _named(chance, 2)})
    kind = chance.choice(({"type": "boolean"}, {"enum": chance.sample(_WORDS, 2)}))
    return named | {"additionalProperties": kind, "maxProperties": 3}


def _annotated(chance: random.Random) -> Schema:
    """As people write them: with words that mean nothing to a grammar."""
    properties = {
        name: _leaf(chance) | {"title": name.title(), "description": f"The {name} of it."}
        for name in _named(chance, 3)
    }
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": chance.choice(_NAMES)} | _object(properties)


def _map(chance: random.Random) -> Schema:
    return {
        "type": "object",
        "patternProperties": {"^[a-z]{1,6}$": _leaf(chance)},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 3,
    }


def _merged(chance: random.Random) -> Schema:
    first, second = _named(chance, 2)
    parts = [{"properties": {name: _leaf(chance)}, "required": [name]} for name in (first, second)]
    return {"type": "object", "allOf": parts, "additionalProperties": True, "maxProperties": 2}


def _function_call(chance: random.Random) -> Schema:
    arguments = _object({name: _leaf(chance) for name in _named(chance, 3)})
    return _object({"name": {"enum": ["get_weather", "send_mail"]}, "arguments": arguments})


def _long_names(chance: random.Random) -> Schema:
    """Most of a reply is forced."""
    words = [f"the_{name}_of_the_whole_document" for name in _named(chance, 3)]
    return _object({word: {"type": "boolean"} for word in words})


def _reasoned(chance: random.Random) -> Schema:
    """A text of some length, then the answer: most of a reply is free."""
    text = {"type": "string", "minLength": 20, "maxLength": 120}
    return _object({"reasoning": text, "answer": _leaf(chance)})


def _bounds(chance: random.Random) -> Schema:
    low = chance.randrange(0, 1000)
    return _object(
        {
            "exact": {"type": "integer", "minimum": low, "maximum": low + 3},
            "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 98},
            "above": {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 500},
        }
    )


_SHAPES: Final[tuple[Callable[[random.Random], Schema], ...]] = (
    _flat, _optional, _nested, _array, _records, _tuple, _formats, _patterns, _any_of, _tagged,
    _referenced, _tree, _map, _function_call, _long_names, _reasoned, _bounds, _merged, _chain,
    _expression, _numbers, _matrix, _open, _annotated,
)  # fmt: skip
NUM_SHAPES: Final = len(_SHAPES)
