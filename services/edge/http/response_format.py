"""The format of a reply that a request asks for, as a grammar (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outrider.errors import InvalidSamplingError
from outrider.sampling.grammar import Grammar, from_response_format
from services.edge.http.bodies import null, schema_in
from services.edge.http.openai_errors import refused
from services.edge.http.passed_over import PassedOver


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A schema that the reply follows."""

    schema: msgspec.Raw = msgspec.field(default_factory=null)
    """Raw, since the reply has its properties in the schema's order."""
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Whether keywords that cannot be enforced are refused; otherwise the reply need not follow
    them."""


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Format of the reply: type text, json_object or json_schema; ours: regex or lark."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    """For json_object: a schema that the reply follows, as in llama.cpp's server."""
    grammar: str | None = None
    """For regex and lark: the expression or grammar."""


def grammar_of(
    wanted: ResponseFormat | None, field: str, passed_over: PassedOver
) -> Grammar | None:
    """The grammar of a `response_format`, which the request has in `field`. Raises
    InvalidRequestError."""
    if wanted is None:
        return None
    value: dict[str, Any] = {"type": wanted.type, "grammar": wanted.grammar}
    value["schema"] = schema_in(field, wanted.schema)
    if wanted.json_schema is not None:
        schema = schema_in(field, wanted.json_schema.schema)
        value["json_schema"] = {"schema": schema, "strict": wanted.json_schema.strict}
    return grammar_in(value, field, passed_over)


def grammar_in(
    response_format: Mapping[str, Any], field: str, passed_over: PassedOver
) -> Grammar | None:
    """The same, of a `response_format` as Python has it."""
    try:
        grammar = from_response_format(response_format)
    except InvalidSamplingError as error:
        raise refused(field, f"{field}: {error.message}") from None
    for keyword in () if grammar is None else grammar.unenforced:
        passed_over.add(field, keyword)
    return grammar


def check_strict(parameters: msgspec.Raw, field: str) -> None:
    """Raises InvalidRequestError for the schema of a strict tool that cannot be enforced."""
    schema = schema_in(field, parameters)
    if isinstance(schema, dict):
        wanted = {"type": "json_schema", "json_schema": {"schema": schema, "strict": True}}
        grammar_in(wanted, field, PassedOver())


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
