"""Conversations and the tools that a model may call, as the OpenAI API writes them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outrider.models.chat import Message, check_messages, check_num_calls, check_num_messages
from outrider.models.tools import (
    AUTO,
    NONE,
    REQUIRED,
    ToolCall,
    check_choice,
    check_num_tools,
    check_tools,
)
from services.edge.http.bodies import is_given, null
from services.edge.http.openai_errors import not_text, refused
from services.edge.http.text_documents import shown, text_of_file

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS: Final = ("text", "input_text", "output_text")
_FILES: Final = ("file", "input_file")
_PART_SEPARATOR: Final = "\n"
_MAX_NAME_CHARS: Final = 64
_MAX_PARTS: Final = 4096
"""Parts of one message; a body has room for fifty thousand, which would hold the event loop."""


class AttachedFile(msgspec.Struct, kw_only=True, gc=False):
    """A file sent with the request."""

    file_data: str | None = None
    """A data URL, or base64."""
    filename: str | None = None


class ContentPart(AttachedFile, kw_only=True, gc=False):
    """A part of a message: text, or a file whose contents are text; others are refused."""

    type: str
    text: str | None = None
    refusal: str | None = None
    file: AttachedFile | None = None
    """Of a part of type `file`; one of type `input_file` has these fields itself."""


class CalledFunction(msgspec.Struct, kw_only=True, gc=False):
    """The function that a call names, with its arguments."""

    name: str
    arguments: str = ""
    """A JSON object, as text."""


class MessageToolCall(msgspec.Struct, kw_only=True, gc=False):
    """A call that the assistant made."""

    id: str
    type: str = "function"
    function: CalledFunction | None = None


class SpokenReply(msgspec.Struct, kw_only=True, gc=False):
    """An earlier reply of the assistant that was spoken; refused."""

    id: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    """Calls of an assistant's message."""
    tool_call_id: str | None = None
    """Id of the call that a tool message answers."""
    reasoning_content: str | None = None
    """An assistant's reasoning before its content, for chat templates that show it."""
    reasoning: str | None = None
    """The same, as vLLM and OpenRouter name it."""
    audio: SpokenReply | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True, gc=False):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    """A JSON schema of type object. Raw, since the order of its properties counts."""
    strict: bool | None = None
    """Accepted without effect: arguments of calls forced by `tool_choice` follow the schema, those
    of others are the model's own."""


class Tool(msgspec.Struct, kw_only=True, gc=False):
    """A tool that the model may call."""

    type: str
    function: FunctionDefinition | None = None


class _NamedFunction(msgspec.Struct):
    name: str


class _NamedTool(msgspec.Struct):
    type: str
    function: _NamedFunction


_choice_of: Final = msgspec.json.Decoder(str | _NamedTool).decode


def messages_of(given: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """The conversation. Raises InvalidRequestError."""
    check_num_messages(len(given))
    messages = tuple(_message(number, message) for number, message in enumerate(given))
    check_messages(messages)
    return messages


def _message(number: int, message: ChatMessage) -> Message:
    where = f"messages[{number}]"
    if message.role not in _ROLES:
        raise refused(
            f"{where}.role",
            f"{where}.role {message.role[:_MAX_NAME_CHARS]!r} is not served; use one of "
            f"{', '.join(_ROLES)}",
        )
    if message.audio is not None:
        raise not_text(f"{where}.audio", "audio")
    calls = message.tool_calls or []
    check_num_calls(len(calls))
    return Message(
        message.role,
        text_of(f"{where}.content", message.content),
        tool_calls=tuple(_call(f"{where}.tool_calls", call) for call in calls),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def _call(where: str, call: MessageToolCall) -> ToolCall:
    if call.type != "function" or call.function is None:
        raise refused(where, f"{where}: models here call only functions; send type function")
    return ToolCall(call.id, call.function.name, call.function.arguments)


def text_of(
    where: str,
    content: str | Sequence[ContentPart] | None,
    text_parts: Sequence[str] = TEXT_PARTS,
) -> str:
    """The text of a field, which may be in parts; `text_parts`: the types of those that are text.
    Raises InvalidRequestError."""
    if content is None or isinstance(content, str):
        return content or ""
    check_num_parts(where, len(content))
    return _PART_SEPARATOR.join(
        _text(f"{where}[{number}]", part, text_parts) for number, part in enumerate(content)
    )


def check_num_parts(where: str, count: int) -> None:
    """Raises InvalidRequestError for more parts than may be, before each costs."""
    if count > _MAX_PARTS:
        raise refused(where, f"{where} has at most {_MAX_PARTS} parts; join texts into one")


def _text(where: str, part: ContentPart, text_parts: Sequence[str]) -> str:
    if part.type in text_parts:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _FILES:
        given = part.file or part
        text = text_of_file(where, part.type, given.file_data)
        return shown(text, given.filename)
    raise not_text(where, part.type)


def tools_of(given: Sequence[Tool]) -> tuple[str, ...]:
    """ChatRequest.tools: the tools that the model may call. Raises InvalidRequestError."""
    check_num_tools(len(given))
    return check_tools([_definition(tool) for tool in given])


def _definition(tool: Tool) -> str:
    if tool.type != "function" or tool.function is None:
        raise refused("tools", "models here call only functions; send tools of type function")
    function = tool.function
    fields: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        fields["description"] = function.description
    if is_given(function.parameters):
        fields["parameters"] = function.parameters
    return msgspec.json.encode(fields).decode()


def choice_of(given: msgspec.Raw, tools: Sequence[str]) -> str:
    """ChatRequest.tool_choice. Raises InvalidRequestError."""
    if not is_given(given):
        return AUTO
    try:
        found = _choice_of(given)
    except (msgspec.ValidationError, RecursionError):
        found = ""
    if isinstance(found, _NamedTool):
        name = found.function.name if found.type == "function" else ""
        return check_choice(name, tools) if name not in ("", AUTO, NONE, REQUIRED) else _no_choice()
    return check_choice(found, tools) if found in (AUTO, NONE, REQUIRED) else _no_choice()


def _no_choice() -> str:
    raise refused(
        "tool_choice",
        'tool_choice is none, auto, required, or {"type": "function", "function": {"name": ...}} '
        "of one of the tools",
    )
