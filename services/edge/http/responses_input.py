"""The input of the OpenAI Responses API as a conversation, and its tools (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message
from outrider.models.tools import AUTO, NONE, REQUIRED, ToolCall, check_num_tools
from services.edge.http.bodies import is_given, null, schema_in
from services.edge.http.openai_errors import refused
from services.edge.http.openai_messages import TEXT_PARTS, ContentPart, text_of
from services.edge.http.translation import definition_of

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_THOUGHTS: Final = (*TEXT_PARTS, "summary_text", "reasoning_text")
_PART_SEPARATOR: Final = "\n"
_STORED: Final = ("item_reference", "compaction")
_MAX_NAME_CHARS: Final = 64


class InputItem(msgspec.Struct, kw_only=True, gc=False):
    """An item of the conversation: a message (its type may be left out), a function_call, a
    function_call_output or reasoning; others are refused."""

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None


class FunctionTool(msgspec.Struct, kw_only=True, gc=False):
    """A function that the model may call."""

    type: str
    """function; tools that the API itself runs are refused."""
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    """A JSON schema of type object. Raw, since the order of its properties counts."""
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, kw_only=True):
    """The function that the model has to call."""

    type: str
    name: str | None = None


def messages_of(instructions: str | None, given: str | Sequence[InputItem]) -> tuple[Message, ...]:
    """Messages in the form for chat templates: an assistant's consecutive reasoning, text and calls
    become one message. Raises InvalidRequestError."""
    made: list[Message] = []
    if instructions:
        made.append(Message("system", instructions))
    if isinstance(given, str):
        return (*made, Message("user", given))
    for number, item in enumerate(given):
        message = _message(f"input[{number}]", item)
        if made and made[-1].role == message.role == "assistant":
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
    return tuple(made)


def _message(where: str, item: InputItem) -> Message:
    match item.type:
        case "message":
            return Message(_role(where, item), text_of(f"{where}.content", item.content))
        case "function_call":
            if not item.call_id or not item.name:
                raise refused(where, f"{where}: a function_call has a call_id and a name")
            call = ToolCall(item.call_id, item.name, item.arguments or "")
            return Message("assistant", "", tool_calls=(call,))
        case "function_call_output":
            if not item.call_id:
                raise refused(where, f"{where}: a function_call_output has a call_id")
            text = text_of(f"{where}.output", item.output)
            return Message("tool", text, tool_call_id=item.call_id)
        case "reasoning":
            thought = item.content or item.summary
            return Message(
                "assistant", "", reasoning=text_of(f"{where}.content", thought, _THOUGHTS)
            )
        case kind if kind in _STORED:
            raise refused(where, f"{where}: nothing is stored here; send the items themselves")
        case kind:
            raise refused(
                where,
                f"{where}: items of type {kind[:_MAX_NAME_CHARS]!r} are not served; send messages, "
                "functions' calls and their outputs",
            )


def _role(where: str, item: InputItem) -> str:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise refused(
            f"{where}.role",
            f"{where}.role {(item.role or '')[:_MAX_NAME_CHARS]!r} is not served; use one of "
            f"{', '.join(_ROLES)}",
        )
    return role


def _joined(first: Message, second: Message) -> Message:
    between = _PART_SEPARATOR if first.content and second.content else ""
    return Message(
        "assistant",
        first.content + between + second.content,
        tool_calls=first.tool_calls + second.tool_calls,
        reasoning=first.reasoning + second.reasoning,
    )


def tool_definitions(tools: Sequence[FunctionTool]) -> list[str]:
    """Tool definitions for outrider.models.tools.check_tools. Raises InvalidRequestError for tools
    that the API itself would have to run."""
    check_num_tools(len(tools))
    made = []
    for number, tool in enumerate(tools):
        if tool.type != "function":
            raise refused(
                f"tools[{number}]",
                f"tools[{number}]: {tool.type[:_MAX_NAME_CHARS]!r} is a tool of that API's own, "
                "which is not run here; send functions",
            )
        made.append(definition_of(tool.name, tool.description, tool.parameters))
    return made


def tool_choice_of(choice: str | FunctionChoice | None) -> str:
    """ChatRequest.tool_choice. Raises InvalidRequestError."""
    if choice is None:
        return AUTO
    if isinstance(choice, str):
        if choice not in (AUTO, NONE, REQUIRED):
            raise _misread_choice()
        return choice
    if choice.type != "function" or not choice.name:
        raise _misread_choice()
    return choice.name


def _misread_choice() -> InvalidRequestError:
    return refused("tool_choice", "tool_choice is auto, none, required, or a function by its name")


def response_format_of(given: msgspec.Raw | None) -> dict[str, Any]:
    """The `response_format` of chat completions equivalent to `text.format`. Raises
    InvalidRequestError."""
    if given is None or not is_given(given):
        return {"type": "text"}
    text_format = schema_in("text.format", given)
    if not isinstance(text_format, dict):
        raise refused("text.format", "text.format is an object with a type")
    if text_format.get("type") != "json_schema":
        return text_format
    named = {name: value for name, value in text_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": named}
