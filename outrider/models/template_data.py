"""A chat in the form that its template reads, and the same chat with the user's texts changed.
Pure.

The form is that of OpenAI's API and of Hugging Face's `apply_chat_template`, with the arguments of
calls as objects, which templates for tools expect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from outrider.models.chat import Message
from outrider.models.tools import ToolCall, UnreadArguments, read_arguments

Change: TypeAlias = Callable[[str], str]

_ASSISTANT: Final = "assistant"
_BLANK: Final = "\ufffd"
_ASCII_BLANKS: Final = bytes(b if chr(b).isspace() else 0x7F for b in range(256))
"""DEL stands for `_BLANK` in ASCII text: no control token has it, no template looks for it."""
_WORD: Final = re.compile(r"\S+")
_BLANKED: Final = re.compile(r"[\s\x7f\ufffd]+")
_PIECE_CHARS: Final = 4096
_NUMBERED: Final = 0xE000
"""The first private-use character; no control token has one."""
_SCHEMA_WORDS: Final = frozenset(
    {"type", "properties", "required", "items", "enum", "description", "additionalProperties"}
    | {"anyOf", "oneOf", "allOf", "const", "default", "title", "format", "nullable"}
    | {"$ref", "$defs", "object", "array", "string", "integer", "number", "boolean", "null"}
)
"""Keys and values of tool definitions that templates branch on."""


@dataclass(frozen=True, slots=True)
class TemplateData:
    """Variables that a template is rendered with."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]
    """Further variables that the client gives, by their names."""

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        tools: Sequence[str],
        variables: dict[str, Any],
        *,
        knows_developer: bool,
        reasoning_field: str,
    ) -> TemplateData:
        """`knows_developer`: whether the template has that role; otherwise its messages become the
        system's. `reasoning_field`: where the template reads an assistant's reasoning; "":
        nowhere."""
        names: dict[str, str] = {}
        turns = []
        for message in messages:
            names |= {call.id: call.name for call in message.tool_calls}
            is_renamed = message.role == "developer" and not knows_developer
            turn = _turn(message, "system" if is_renamed else message.role, names)
            if message.reasoning and reasoning_field:
                turn[reasoning_field] = message.reasoning
            turns.append(turn)
        return cls(turns, [_function(json.loads(text)) for text in tools], variables)

    def texts(self) -> Iterator[tuple[str, bool]]:
        """Every text that is the user's, names of roles left out, and whether it is in what the
        assistant said."""
        for turn in self.messages:
            is_reply = turn["role"] == _ASSISTANT
            for key, value in turn.items():
                for text in () if key == "role" else _texts(value):
                    yield text, is_reply
        for value in (*(tool["function"] for tool in self.tools), *self.variables.values()):
            for text in _texts(value):
                yield text, False

    def changed(self, change: Change, change_reply: Change) -> TemplateData:
        """With every text that is the user's changed, keys of objects included; what the assistant
        said by `change_reply`."""

        def in_data(change: Change) -> Callable[[Any], Any]:
            return lambda value: _changed(value, change)

        def changed_turn(turn: dict[str, Any]) -> dict[str, Any]:
            its_change = change_reply if turn["role"] == _ASSISTANT else change
            return _mapped_turn(turn, its_change, in_data(its_change))

        return self._mapped(list(map(changed_turn, self.messages)), in_data(change))

    def ended(self, end: str) -> TemplateData:
        """With this text behind the content of the last message."""
        last = self.messages[-1]
        last = last | {"content": last["content"] + end}
        return TemplateData([*self.messages[:-1], last], self.tools, self.variables)

    def blanked(self, own_words: Container[str]) -> TemplateData:
        """The same form with all the user's characters but spaces blanked: all that a template
        renders of it is the template's own. Texts of variables that are among `own_words`, which
        are the template's, are left: it branches on them."""
        turns = [_mapped_turn(turn, blank, _blanked_arguments) for turn in self.messages]
        return self._mapped(
            turns, _blanked_definition, lambda value: _blanked_variable(value, own_words)
        )

    def _mapped(
        self,
        turns: list[dict[str, Any]],
        of_tool: Callable[[Any], Any],
        of_variable: Callable[[Any], Any] | None = None,
    ) -> TemplateData:
        of_variable = of_variable or of_tool
        return TemplateData(
            turns,
            [_function(of_tool(tool["function"])) for tool in self.tools],
            {name: of_variable(value) for name, value in self.variables.items()},
        )


def blank(text: str) -> str:
    """A text of the same length without any of its characters but spaces. By a table of bytes, or
    in pieces: one call over a long text would hold the GIL for tens of milliseconds."""
    if text.isascii():
        return text.encode().translate(_ASCII_BLANKS).decode()
    pieces = (text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS))
    return "".join(_WORD.sub(lambda word: _BLANK * len(word.group()), piece) for piece in pieces)


def is_blank(text: str) -> bool:
    """Whether a text has characters that `blank` leaves as they are, and no others: only spaces, or
    what stands for another character."""
    return _BLANKED.fullmatch(text) is not None


def _turn(message: Message, role: str, names: dict[str, str]) -> dict[str, Any]:
    """Only with the keys that it has: templates ask whether they are there. `names`: of the tools
    called so far, by the ids of the calls."""
    turn: dict[str, Any] = {"role": role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if name := message.name or names.get(message.tool_call_id, ""):
        turn["name"] = name
    return turn


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id} | _function({"name": call.name, "arguments": read_arguments(call)})


def _function(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _mapped_turn(turn: dict[str, Any], text: Change, data: Callable[[Any], Any]) -> dict[str, Any]:
    return {key: _mapped_part(key, value, text, data) for key, value in turn.items()}


def _mapped_part(key: str, value: Any, text: Change, data: Callable[[Any], Any]) -> Any:
    """A value of a turn."""
    if key == "role":
        return value
    if key != "tool_calls":
        return text(value)
    return [
        {"id": text(call["id"])}
        | _function(
            {
                "name": text(call["function"]["name"]),
                "arguments": _mapped_arguments(call["function"]["arguments"], text, data),
            }
        )
        for call in value
    ]


def _mapped_arguments(value: Any, text: Change, data: Callable[[Any], Any]) -> Any:
    return UnreadArguments(text(value)) if isinstance(value, UnreadArguments) else data(value)


def _texts(value: Any) -> Iterator[str]:
    """Every text in JSON, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _changed(value: Any, change: Change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _changed(inner, change) for key, inner in value.items()}
    return [_changed(inner, change) for inner in value] if isinstance(value, list) else value


def _blanked_definition(function: dict[str, Any]) -> dict[str, Any]:
    """A definition without its name and description, which templates do not branch on."""
    return {
        key: blank(value) if isinstance(value, str) else _blanked(value, _SCHEMA_WORDS)
        for key, value in function.items()
    }


def _blanked_arguments(value: Any) -> Any:
    return _blanked(value, ())


def _blanked_variable(value: Any, own_words: Container[str]) -> Any:
    """Numbers stay in place of the variable itself: templates compare them."""
    is_plain = not isinstance(value, str | dict | list)
    return value if is_plain else _blanked(value, own_words)


def _blanked(value: Any, kept: Container[str]) -> Any:
    """JSON of the same shape: another key for each key, another number for each number."""
    if isinstance(value, str):
        return value if value in kept else blank(value)
    if isinstance(value, dict):
        return {
            key if key in kept else f"{blank(key)}{chr(_NUMBERED + number % 0x1000)}": _blanked(
                inner, kept
            )
            for number, (key, inner) in enumerate(value.items())
        }
    if isinstance(value, list):
        return [_blanked(inner, kept) for inner in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value + 1 if is_number else value
