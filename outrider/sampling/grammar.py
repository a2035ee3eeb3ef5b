"""Grammars for replies: a JSON schema, a regular expression, or a context-free grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outrider.errors import InvalidSamplingError
from outrider.reply_parsing.formats import ReasoningTags
from outrider.sampling import grammar_cost
from outrider.sampling.json_schema import enforceable

MAX_GRAMMAR_BYTES = 1 << 16
"""Longest text of a grammar, in UTF-8. It is sent with the request, and again when a chat moves."""
_MAX_PATH_CHARS = 200
MAX_SCHEMA_DEPTH = 64
"""Most arrays and objects around a value of a schema."""


def too_long() -> InvalidSamplingError:
    """The error for a text with more than MAX_GRAMMAR_BYTES."""
    return InvalidSamplingError(
        f"the text of the grammar has more than {MAX_GRAMMAR_BYTES} bytes; send a shorter one"
    )


class GrammarKind(StrEnum):
    """Language of a grammar."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    """Any JSON object; the text is empty."""
    REGEX = "regex"
    """The whole reply matches the expression."""
    LARK = "lark"
    """A context-free grammar in llguidance's variant of Lark's syntax; the reply is a `start`."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's kind and text. Raises InvalidSamplingError for a text that cannot be of its kind;
    full validity is only known when the replica compiles it.

    Messages and `repr` never show the text: schemas reveal much about their authors.
    """

    kind: GrammarKind
    text: str = field(default="", repr=False)
    reasoning: ReasoningTags | None = None
    """Tags of reasoning that may stand before the text; None: the reply is the text alone. The
    replica sets it, and the next one, when it knows the prompt."""
    begins_in_reasoning: bool = False
    """The prompt ends in the first tag, so the reply begins with reasoning."""
    unenforced: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Keywords of a JSON schema that the reply need not follow; known where the grammar is made."""

    def __post_init__(self) -> None:
        if self.kind is GrammarKind.JSON_OBJECT:
            if self.text:
                raise InvalidSamplingError("the grammar json_object takes no text; leave it empty")
            return
        if not self.text:
            raise InvalidSamplingError(f"the grammar {self.kind} has no text; send one")
        if self._num_bytes() > MAX_GRAMMAR_BYTES:
            raise too_long()
        if "\0" in self.text:
            raise InvalidSamplingError("the text of the grammar has a NUL character; remove it")
        if self.kind is GrammarKind.JSON_SCHEMA:
            _check_schema(self.text)
        elif self.kind is GrammarKind.LARK:
            grammar_cost.check_lark(self.text)
        else:
            grammar_cost.check_regex(self.text)

    def _num_bytes(self) -> int:
        try:
            return len(self.text.encode())
        except UnicodeEncodeError:
            raise InvalidSamplingError(
                "the text of the grammar has half a surrogate pair; send valid Unicode"
            ) from None


JSON_OBJECT = Grammar(GrammarKind.JSON_OBJECT)


def json_schema(schema: Mapping[str, Any], *, strict: bool = False) -> Grammar:
    """The grammar of a schema as Python has it. Keywords that cannot be enforced are left out
    (`Grammar.unenforced`), or refused if the reply has to be `strict`. Raises
    InvalidSamplingError."""
    try:
        found, unenforced = enforceable(schema)
        # Keys keep their order, which is that of the reply's properties.
        text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise InvalidSamplingError(
            "the schema holds what JSON cannot say; send JSON's types only"
        ) from None
    if strict and unenforced:
        keyword, path = unenforced[0]
        raise InvalidSamplingError(
            f"the schema's {keyword} at {path[:_MAX_PATH_CHARS]} cannot be enforced; leave it out, "
            "or ask without strict"
        )
    keywords = tuple(dict.fromkeys(it.keyword for it in unenforced))
    return Grammar(GrammarKind.JSON_SCHEMA, text, unenforced=keywords)


def from_response_format(value: Mapping[str, Any]) -> Grammar | None:
    """The grammar of an OpenAI `response_format`: of type text (none), json_object or json_schema;
    besides, of type regex or lark with the text in "grammar", and json_object with a "schema", as
    llama.cpp's server and others take it. Raises InvalidSamplingError."""
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object" and value.get("schema") is None:
        return JSON_OBJECT
    if kind == "json_object":
        return _of_schema(value["schema"], "schema")
    if kind == "json_schema":
        named = value.get("json_schema")
        if not isinstance(named, Mapping):
            named = {}
        strict = named.get("strict") is True
        return _of_schema(named.get("schema"), "json_schema.schema", strict=strict)
    if kind in ("regex", "lark"):
        text = value.get("grammar")
        if not isinstance(text, str):
            raise InvalidSamplingError("response_format has no grammar; put its text there")
        return Grammar(GrammarKind(kind), text)
    raise InvalidSamplingError(
        "response_format.type must be text, json_object, json_schema, regex or lark"
    )


def _of_schema(schema: object, where: str, *, strict: bool = False) -> Grammar:
    if not isinstance(schema, Mapping):
        raise InvalidSamplingError(f"response_format has no schema; put an object into {where}")
    return json_schema(schema, strict=strict)


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidSamplingError("the schema is not valid JSON; check its syntax") from None
    if not isinstance(schema, dict):
        raise InvalidSamplingError("the schema must be a JSON object")
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [inner for value in level for inner in _within(value)]
        if not level:
            grammar_cost.check_schema(schema)
            return
    raise InvalidSamplingError(
        f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep; use $defs and $ref"
    )


def _within(value: object) -> list[object]:
    """The arrays and objects directly in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]
