"""The grammars that force calls, as text: the markup of each family, the tools' own schemas, and
what a model writes by them is what the parser reads."""

from __future__ import annotations

import json

from outrider.models.tools import tool_text
from outrider.reply_parsing.formats import CallSyntax, ReplyFormat
from outrider.reply_parsing.grammar import call_grammar

GET = tool_text(
    {
        "name": "get",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "all": {"$ref": "#"}},
            "$defs": {"City": {"type": "string"}},
        },
    }
)
NOW = tool_text({"name": "now"})
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def no_control(text: str) -> None:
    return None


def grammar(syntax: CallSyntax, tools: list[str], *, parallel: bool = True) -> dict[str, str]:
    """The rules by name."""
    text = call_grammar(ReplyFormat(syntax), tools, no_control, parallel=parallel)
    lines = text.removesuffix("\n").split("\n")
    return dict(line.split(": ", 1) for line in lines)


def schema_of(rule: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(rule.split("%json ", 1)[1])
    assert found.pop("x-guidance") == JSON_STYLE
    return found


def test_one_tool_is_one_object() -> None:
    rules = grammar(CallSyntax.HERMES, [NOW], parallel=False)
    assert rules["start"] == "call"
    assert rules["call"] == r'"<tool_call>" "\n" body "\n" "</tool_call>"'
    assert schema_of(rules["body"]) == {
        "type": "object",
        "properties": {"name": {"const": "now"}, "arguments": {"type": "object"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_several_tools_are_alternatives_whose_references_lead_home() -> None:
    rules = grammar(CallSyntax.HERMES, [NOW, GET])
    assert rules["start"] == r'call ("\n" call)*'
    schema = schema_of(rules["body"])
    branches = schema["anyOf"]
    assert isinstance(branches, list) and len(branches) == 2
    home = "#/anyOf/1/properties/arguments"
    properties = branches[1]["properties"]["arguments"]["properties"]
    assert properties == {"city": {"$ref": f"{home}/$defs/City"}, "all": {"$ref": home}}


def test_a_grammar_has_no_descriptions_and_values_as_they_are() -> None:
    value = {"description": "kept", "$ref": "#/kept"}
    parameters = {
        "title": "left out",
        "properties": {
            "description": {"type": "string", "description": "left out? *Yes*."},
            "enum": {"$ref": "#/$defs/enum"},
            "fixed": {"const": value, "enum": [value], "$comment": "left out"},
        },
        "$defs": {"enum": {"enum": ["a"], "description": "left out"}},
    }
    tool = tool_text({"name": "t", "description": "left out", "parameters": parameters})
    rules = grammar(CallSyntax.HERMES, [tool], parallel=False)
    assert "left out" not in rules["body"]
    schema = schema_of(rules["body"])
    assert isinstance(schema["properties"], dict)
    assert schema["properties"]["arguments"] == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "enum": {"$ref": "#/properties/arguments/$defs/enum"},
            "fixed": {"const": value, "enum": [value]},
        },
        "$defs": {"enum": {"enum": ["a"]}},
    }


def test_llama_calls_once_with_parameters() -> None:
    rules = grammar(CallSyntax.LLAMA3_JSON, [GET])
    assert rules["start"] == "body"
    assert schema_of(rules["body"])["required"] == ["name", "parameters"]


def test_mistral_writes_a_list_or_names() -> None:
    assert grammar(CallSyntax.MISTRAL, [NOW])["start"] == (
        '"[TOOL_CALLS]" " "? "[" body (", " body)* "]"'
    )
    assert grammar(CallSyntax.MISTRAL, [NOW], parallel=False)["start"] == (
        '"[TOOL_CALLS]" " "? "[" body "]"'
    )
    rules = grammar(CallSyntax.MISTRAL_ARGS, [NOW, GET])
    assert (rules["start"], rules["call"]) == ("call+", "call0 | call1")
    assert rules["call0"].startswith('"[TOOL_CALLS]" "now" "[ARGS]" %json ')
    assert schema_of(rules["call1"])["properties"] == {
        "city": {"$ref": "#/$defs/City"},
        "all": {"$ref": "#"},
    }


def test_gpt_oss_calls_once_in_a_message_or_answers_in_one() -> None:
    rules = grammar(CallSyntax.HARMONY, [NOW, GET])
    assert rules["start"] == "call0 | call1"
    assert rules["call0"].startswith(
        '("<|start|>" "assistant")? "<|channel|>" "commentary to=functions.now " '
        '"<|constrain|>" "json" "<|message|>" %json '
    )
    text = call_grammar(
        ReplyFormat(CallSyntax.HARMONY), [NOW], no_control, parallel=True, answer="{}"
    )
    assert "start: (calls | answer)\n" in text
    assert '"<|channel|>" "final" "<|message|>" %json ' in text


def test_control_tokens_are_named_by_their_ids() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 7}
    text = call_grammar(ReplyFormat(CallSyntax.MISTRAL_ARGS), [NOW], ids.get, parallel=False)
    assert 'call0: <[5]> "now" <[7]> %json ' in text
