"""The grammar that makes a model call a tool, or call one or answer by a schema. Pure.

It is text in llguidance's dialect of Lark.

A call is written as in the model's template, so that the model continues familiar text. The
arguments follow the tool's own schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from outrider.reply_parsing.formats import (
    ARGS,
    CHANNEL,
    CONSTRAIN,
    END_OF_TOOL_CALL,
    MESSAGE,
    START,
    TOOL_CALL,
    TOOL_CALLS,
    CallSyntax,
    ReplyFormat,
)

_GUIDANCE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""The way to write JSON in the models' training data; allowing others would only add choices."""
_ANNOTATIONS: Final = ("title", "description", "$comment")
"""For the model, which reads them in its prompt; a grammar may be so long and no longer."""
_VALUES: Final = ("const", "enum", "default", "examples")
"""Keywords behind which stand values, and no schemas."""
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords behind which stand schemas by name: a property may be called description."""
_ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


def call_grammar(
    reply_format: ReplyFormat,
    tools: Sequence[str],
    control_id: Callable[[str], int | None],
    *,
    parallel: bool,
    answer: str = "",
) -> str:
    """Text in Lark for a reply that calls one of `tools` (canonical JSON texts; a choice by name
    passes only that one), or several if `parallel`. What the model thinks first is left out.

    `answer`: a JSON schema of an answer that may replace the calls; "": none. `control_id`: id of
    the control token with this text; None if there is none.
    """
    definitions = [json.loads(text) for text in tools]
    syntax = reply_format.call_syntax

    def marker(text: str) -> str:
        token = control_id(text)
        return json.dumps(text) if token is None else f"<[{token}]>"

    rules: list[str] = []
    before_answer = ""
    if syntax is CallSyntax.HARMONY:
        # The prompt ends behind the first message's role; one call ends the reply.
        opened = f'({marker(START)} "assistant")? {marker(CHANNEL)}'
        before_answer = f'{opened} "final" {marker(MESSAGE)} '
        calls = " | ".join(f"call{number}" for number in range(len(definitions)))
        for number, tool in enumerate(definitions):
            to = json.dumps(f"commentary to=functions.{tool['name']} ")
            begin = f'{opened} {to} {marker(CONSTRAIN)} "json" {marker(MESSAGE)}'
            rules.append(f"call{number}: {begin} %json {_arguments(tool)}")
    elif syntax is CallSyntax.HERMES:
        calls = 'call ("\\n" call)*' if parallel else "call"
        rules.append(f'call: {marker(TOOL_CALL)} "\\n" body "\\n" {marker(END_OF_TOOL_CALL)}')
        rules.append(_body(definitions, "arguments"))
    elif syntax is CallSyntax.LLAMA3_JSON:
        calls = "body"  # the templates of these models refuse replies with several calls
        rules.append(_body(definitions, "parameters"))
    elif syntax is CallSyntax.MISTRAL:
        more = ' (", " body)*' if parallel else ""
        calls = f'{marker(TOOL_CALLS)} " "? "[" body{more} "]"'
        rules.append(_body(definitions, "arguments"))
    else:
        names = " | ".join(f"call{number}" for number in range(len(definitions)))
        calls = "call+" if parallel else "call"
        rules.append(f"call: {names}")
        for number, tool in enumerate(definitions):
            begin = f"{marker(TOOL_CALLS)} {json.dumps(tool['name'])} {marker(ARGS)}"
            rules.append(f"call{number}: {begin} %json {_arguments(tool)}")
    if answer:
        rules += [
            f"calls: {calls}",
            f"answer: {before_answer}%json {_with_guidance(json.loads(answer))}",
        ]
        calls = "(calls | answer)"
    return "\n".join([f"start: {calls}", *rules, ""])


def _body(definitions: Sequence[dict[str, Any]], key: str) -> str:
    """The rule of a call's object."""
    if len(definitions) == 1:
        return f"body: %json {_with_guidance(_call(definitions[0], key, '#'))}"
    branches = [_call(tool, key, f"#/anyOf/{number}") for number, tool in enumerate(definitions)]
    return f"body: %json {_with_guidance({'anyOf': branches})}"


def _call(tool: dict[str, Any], key: str, place: str) -> dict[str, Any]:
    parameters = _parameters(tool, f"{place}/properties/{key}")
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, key: parameters},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _arguments(tool: dict[str, Any]) -> str:
    """The schema of arguments that stand by themselves."""
    return _with_guidance(_parameters(tool, "#"))


def _parameters(tool: dict[str, Any], place: str) -> Any:
    """A tool's schema, with its references extended by `place`, a JSON pointer to where the schema
    is put."""
    return _ANY_OBJECT | _moved(tool.get("parameters") or {}, place)


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_moved(inner, place) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, inner in schema.items():
        if key in _VALUES:
            moved[key] = inner
        elif key in _BY_NAME and isinstance(inner, dict):
            moved[key] = {name: _moved(one, place) for name, one in inner.items()}
        elif key not in _ANNOTATIONS:
            moved[key] = _moved(inner, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def _with_guidance(schema: dict[str, Any]) -> str:
    own = schema.get("x-guidance")
    whole = {**schema, "x-guidance": _GUIDANCE | own if isinstance(own, dict) else _GUIDANCE}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
