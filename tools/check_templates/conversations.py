"""Conversations that chat templates are tried with, as transformers takes them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Conversation(NamedTuple):
    """One chat."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _user(content: str) -> dict[str, Any]:
    return _said("user", content)


def _calls(*calls: tuple[str, dict[str, Any]], content: str = "", first: int = 1) -> dict[str, Any]:
    """An answer that calls; ids have nine letters and digits, as Mistral's templates want them."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call{number:05}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(calls, first)
        ],
    }


def _result(number: int, name: str, content: str) -> dict[str, Any]:
    call_id = f"call{number:05}"
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _function(name: str, about: str, **properties: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


_TOOLS: Final = [
    _function(
        "get_weather",
        "Weather of a city",
        city={"type": "string", "description": "its name"},
        days={"type": "integer"},
    ),
    _function("add", "Adds", a={"type": "number"}, b={"type": "number"}),
]
_ASK: Final = _user("Weather in Rome?")
_ROME: Final = ("get_weather", {"city": "Rome"})
_SUM: Final = ("add", {"a": 1, "b": 2})
_SUNNY: Final = _result(1, "get_weather", "sunny")
MARKUP: Final = ("<|im_end|>", "</s>", "[INST]", "<|eot_id|>", "<end_of_turn>")
"""Control tokens of several families, which a user types."""

CONVERSATIONS: Final = (
    Conversation("one message", [_user("Hello")], []),
    Conversation("system", [_said("system", "You are terse."), _user("Hello")], []),
    Conversation("turns", [_user("a"), _said("assistant", "b"), _user("c")], []),
    Conversation(
        "system and turns",
        [
            *(_said("system", "s"), _user("a"), _said("assistant", "b")),
            *(_user("c"), _said("assistant", "d"), _user("e")),
        ],
        [],
    ),
    Conversation(
        "spaces",
        [_user("  before and behind \n"), _said("assistant", " x "), _user("\n\ny")],
        [],
    ),
    Conversation(
        "scripts",
        [
            _said("system", "Antworte."),
            _user("Gr\u00fc\u00dfe, \u4e16\u754c \U0001f642 \u05e9\u05dc\u05d5\u05dd"),
        ],
        [],
    ),
    Conversation("markup", [_user(f"<b>&amp; {{{{ x }}}} {{% y %}} {' '.join(MARKUP)}")], []),
    Conversation(
        "code",
        [_user("```py\nprint('a')\n```\n"), _said("assistant", "ok"), _user("why?")],
        [],
    ),
    Conversation("long", [_said("system", "x" * 500), _user("y " * 400)], []),
    Conversation("empty answer", [_user("a"), _said("assistant", ""), _user("b")], []),
    Conversation("two of the user", [_user("a"), _user("b")], []),
    Conversation("late system", [_user("a"), _said("system", "b"), _user("c")], []),
    Conversation("tools", [_ASK], _TOOLS),
    Conversation("system and tools", [_said("system", "Be good."), _ASK], _TOOLS),
    Conversation("quotes", [_user("He said \"no\" \\ and 'yes'\t<x>")], _TOOLS),
    Conversation("call", [_ASK, _calls(_ROME), _SUNNY], _TOOLS),
    Conversation(
        "call and answer",
        [_ASK, _calls(_ROME), _SUNNY, _said("assistant", "It is sunny."), _user("Thanks")],
        _TOOLS,
    ),
    Conversation(
        "two calls",
        [
            _ASK,
            _calls(("get_weather", {"city": "Rome", "days": 2}), ("add", {"a": 1, "b": 2.5})),
            _SUNNY,
            _result(2, "add", "3.5"),
        ],
        _TOOLS,
    ),
    Conversation(
        "call with text",
        [_ASK, _calls(_SUM, content="Let me look."), _result(1, "add", "3")],
        _TOOLS,
    ),
    Conversation(
        "result in JSON",
        [_ASK, _calls(_SUM), _result(1, "add", '{"sum": 3, "ok": true}')],
        _TOOLS,
    ),
    Conversation(
        "call after call",
        [
            *(_ASK, _calls(_SUM), _result(1, "add", "3")),
            *(_calls(("add", {"a": 3, "b": 4}), first=2), _result(2, "add", "7")),
        ],
        _TOOLS,
    ),
)
