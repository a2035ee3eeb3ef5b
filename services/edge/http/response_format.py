"""The format of a reply that a request asks for, as a grammar (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import Grammar, from_response_format
from services.edge.http.bodies import null, schema_in
from services.edge.http.openai_errors import refused


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema that the reply follows."""

    schema: msgspec.Raw = msgspec.field(default_factory=null)
    """Raw, since the reply has its properties in the schema's order."""
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Accepted without effect: the reply always follows the schema."""


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Format of the reply: type text, json_object or json_schema; ours: regex or lark."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    """For json_object: a schema that the reply follows, as in llama.cpp's server."""
    grammar: str | None = None
    """For regex and lark: the expression or grammar."""


def grammar_of(wanted: ResponseFormat | None, field: str) -> Grammar | None:
    """The grammar of a `response_format`, which the request has in `field`. Raises
    InvalidRequestError."""
    if wanted is None:
        return None
    value: dict[str, Any] = {"type": wanted.type, "grammar": wanted.grammar}
    value["schema"] = schema_in(field, wanted.schema)
    if wanted.json_schema is not None:
        value["json_schema"] = {"schema": schema_in(field, wanted.json_schema.schema)}
    return grammar_in(value, field)


def grammar_in(response_format: Mapping[str, Any], field: str) -> Grammar | None:
    """The same, of a `response_format` as Python has it."""
    try:
        return from_response_format(response_format)
    except InvalidSamplingError as error:
        raise refused(field, f"{field}: {error.message}") from None


def flat_format(given: msgspec.Raw, field: str) -> dict[str, Any]:
    """The `response_format` that stands for a format as APIs write it that have the members of
    `json_schema` beside its type. Raises InvalidRequestError."""
    found = schema_in(field, given)
    if found is None:
        return {"type": "text"}
    if not isinstance(found, dict):
        raise refused(field, f"{field} is an object with a type")
    if found.get("type") != "json_schema":
        return found
    named = {name: value for name, value in found.items() if name != "type"}
    return {"type": "json_schema", "json_schema": named}
