"""The input of the OpenAI Responses API as a conversation, and its tools (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from outrider.errors import InvalidRequestError
from outrider.models.chat import MAX_TOOL_CALLS, Message
from outrider.models.tools import AUTO, ToolCall, check_num_tools
from services.edge.http.bodies import is_given, null, read_part
from services.edge.http.history import arguments_in, call_with_input, result_in
from services.edge.http.openai_errors import refused
from services.edge.http.openai_messages import (
    MODES,
    ContentPart,
    check_num_parts,
    replayed,
    text_of,
)
from services.edge.http.passed_over import PassedOver

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_FUNCTION: Final = "function"
_PART_SEPARATOR: Final = "\n"
_MAX_NAME_CHARS: Final = 64


class InputItem(msgspec.Struct, kw_only=True, gc=False):
    """An item of the conversation: a message (its type may be left out), a function_call, a
    function_call_output or reasoning. Calls of other tools, and their outputs, are shown as those
    of functions; what cannot be shown is passed over."""

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.field(default_factory=null)
    input: msgspec.Raw = msgspec.field(default_factory=null)
    action: msgspec.Raw = msgspec.field(default_factory=null)
    operation: msgspec.Raw = msgspec.field(default_factory=null)
    code: msgspec.Raw = msgspec.field(default_factory=null)
    queries: msgspec.Raw = msgspec.field(default_factory=null)
    output: msgspec.Raw = msgspec.field(default_factory=null)
    outputs: msgspec.Raw = msgspec.field(default_factory=null)
    results: msgspec.Raw = msgspec.field(default_factory=null)
    error: msgspec.Raw = msgspec.field(default_factory=null)


class FunctionTool(msgspec.Struct, kw_only=True, gc=False):
    """A function that the model may call."""

    type: str
    """function; tools that the API itself defines or runs are passed over."""
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    """A JSON schema of type object. Raw, since the order of its properties counts."""
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The function that the model has to call, or those that it may call (type allowed_tools)."""

    type: str
    name: str | None = None
    mode: str | None = None
    """Of allowed_tools: auto or required."""
    tools: list[FunctionChoice] | None = None


_decode_output: Final = msgspec.json.Decoder(str | list[ContentPart] | None).decode
_CALL: Final = "_call"
_OUTPUT: Final = "_output"
_INPUTS: Final = ("arguments", "action", "operation", "code", "queries", "input")
"""Members of calls that say what is to be done; a call has one of them."""
_OUTPUTS: Final = ("output", "outputs", "results", "error")
"""Members of calls that say what came of it, where that is no item of its own."""


def messages_of(
    instructions: str | None, given: str | Sequence[InputItem], passed_over: PassedOver
) -> tuple[Message, ...]:
    """Messages in the form for chat templates: an assistant's consecutive reasoning, text and calls
    become one message. Raises InvalidRequestError."""
    made: list[Message] = []
    if instructions:
        made.append(Message("system", instructions))
    if isinstance(given, str):
        return (*made, Message("user", given))
    for number, item in enumerate(given):
        found = _messages(f"input[{number}]", item)
        if not found:
            passed_over.add(f"input[{number}]", item.type)
        for message in found:
            if made and _are_one(made[-1], message):
                made[-1] = _joined(made[-1], message)
            else:
                made.append(message)
    return tuple(made)


def _messages(where: str, item: InputItem) -> list[Message]:
    """None for an item that says nothing which a model could read."""
    match item.type:
        case "message":
            return [Message(_role(where, item), _content(where, item))]
        case "reasoning":
            thought = _thought(where, item)
            return [Message("assistant", "", reasoning=thought)] if thought else []
        case "function_call_output" | "custom_tool_call_output":
            if not item.call_id:
                raise refused(where, f"{where}: a {item.type} has a call_id")
            output = read_part(_decode_output, f"{where}.output", item.output)
            text = text_of(f"{where}.output", output)
            return [Message("tool", text, tool_call_id=item.call_id)]
        case kind if kind.endswith(_OUTPUT):
            return [Message("tool", result_in(item.output), tool_call_id=_call_id(item))]
        case kind if kind.endswith(_CALL):
            return _called(item)
        case "item_reference":
            raise refused(where, f"{where}: nothing is stored here; send the item itself")
        case _:
            return []


def _thought(where: str, item: InputItem) -> str:
    """Empty for one that only the API that made it can read."""
    parts = item.content or item.summary or ()
    if isinstance(parts, str):
        return parts
    check_num_parts(f"{where}.content", len(parts))
    return _PART_SEPARATOR.join(it.text for it in parts if it.text)


def _content(where: str, item: InputItem) -> str:
    content = item.content
    if item.role == "assistant" and isinstance(content, list):
        content = [replayed(part) for part in content]
    return text_of(f"{where}.content", content)


def _called(item: InputItem) -> list[Message]:
    """A call, and its result if the item has it."""
    call_id, name = _call_id(item), item.name or item.type.removesuffix(_CALL)
    given = next((it for it in _INPUTS if is_given(getattr(item, it))), "arguments")
    if given == "arguments":
        call = ToolCall(call_id, name, arguments_in(item.arguments))
    else:
        call = call_with_input(call_id, name, given, getattr(item, given))
    messages = [Message("assistant", "", tool_calls=(call,))]
    output = next((getattr(item, it) for it in _OUTPUTS if is_given(getattr(item, it))), None)
    if output is not None:
        messages.append(Message("tool", result_in(output), tool_call_id=call_id))
    return messages


def _call_id(item: InputItem) -> str:
    return item.call_id or item.id or ""


def _role(where: str, item: InputItem) -> str:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise refused(
            f"{where}.role",
            f"{where}.role {(item.role or '')[:_MAX_NAME_CHARS]!r} is not served; use one of "
            f"{', '.join(_ROLES)}",
        )
    return role


def _are_one(first: Message, second: Message) -> bool:
    num_calls = len(first.tool_calls) + len(second.tool_calls)
    return first.role == second.role == "assistant" and num_calls <= MAX_TOOL_CALLS


def _joined(first: Message, second: Message) -> Message:
    between = _PART_SEPARATOR if first.content and second.content else ""
    return Message(
        "assistant",
        first.content + between + second.content,
        tool_calls=first.tool_calls + second.tool_calls,
        reasoning=first.reasoning + second.reasoning,
    )


def functions_of(tools: Sequence[FunctionTool], passed_over: PassedOver) -> list[FunctionTool]:
    """The tools that are functions. Raises InvalidRequestError for too many tools."""
    check_num_tools(len(tools))
    for number, tool in enumerate(tools):
        if tool.type != _FUNCTION:
            passed_over.add(f"tools[{number}]", tool.type)
    return [tool for tool in tools if tool.type == _FUNCTION]


def tool_choice_of(choice: str | FunctionChoice | None) -> tuple[str, tuple[str, ...] | None]:
    """ChatRequest.tool_choice, and names of the functions that it allows, None for all. Raises
    InvalidRequestError."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, *MODES):
            raise _misread_choice()
        return choice or AUTO, None
    if choice.type == "allowed_tools" and choice.mode is not None:
        found = choice.tools or ()
        return choice.mode, tuple(it.name or "" for it in found if it.type == _FUNCTION)
    if choice.type != _FUNCTION or not choice.name:
        raise _misread_choice()
    return choice.name, None


def _misread_choice() -> InvalidRequestError:
    return refused(
        "tool_choice",
        "tool_choice is auto, none, required, a function by its name, or allowed_tools",
    )
