"""Conversations and the tools that a model may call, as the OpenAI API writes them (pure)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from outrider.errors import InvalidRequestError
from outrider.models.chat import Message, check_messages, check_num_calls, check_num_messages
from outrider.models.tools import (
    AUTO,
    NONE,
    REQUIRED,
    ToolCall,
    check_choice,
    check_num_tools,
    check_tools,
    only_tools,
)
from services.edge.http.bodies import is_given, null
from services.edge.http.history import arguments_in, call_with_input
from services.edge.http.openai_errors import not_text, refused
from services.edge.http.passed_over import PassedOver
from services.edge.http.text_documents import shown, text_of_file

_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
"""`function`: the result of a function_call; it becomes a tool's."""
MODES: Final = (AUTO, NONE, REQUIRED)
"""Values of tool_choice that name no tool."""
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

    name: str = ""
    arguments: msgspec.Raw = msgspec.field(default_factory=null)
    """A JSON object, as text or as it is; of an earlier call any text."""


class CustomInput(msgspec.Struct, kw_only=True, gc=False):
    """The custom tool that an earlier call names, with its input."""

    name: str = ""
    input: msgspec.Raw = msgspec.field(default_factory=null)


class MessageToolCall(msgspec.Struct, kw_only=True, gc=False):
    """A call that the assistant made, of whatever kind: it can only be repeated."""

    id: str | None = None
    type: str = "function"
    function: CalledFunction | None = None
    custom: CustomInput | None = None


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
    function_call: CalledFunction | None = None
    """A call of an assistant's message, from before there were tools."""
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
    """Whether keywords of the schema that cannot be enforced are refused where `tool_choice` forces
    a call, whose arguments follow the schema. Those of other calls are the model's own."""


class Tool(msgspec.Struct, kw_only=True, gc=False):
    """A tool that the model may call."""

    type: str
    """function; tools of other types are passed over."""
    function: FunctionDefinition | None = None


class _NamedFunction(msgspec.Struct):
    name: str


class _NamedTool(msgspec.Struct):
    type: str
    function: _NamedFunction | None = None


class _AllowedTools(msgspec.Struct):
    mode: str
    tools: list[_NamedTool]


class _Choice(_NamedTool):
    allowed_tools: _AllowedTools | None = None


_choice_of: Final = msgspec.json.Decoder(str | _Choice).decode


def messages_of(given: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """The conversation. Raises InvalidRequestError."""
    check_num_messages(len(given))
    messages = tuple(_message(number, message) for number, message in enumerate(given))
    check_conversation(messages, "messages")
    return messages


def check_conversation(messages: Sequence[Message], field: str) -> None:
    """Raises EmptyPromptError, PromptTooLongError or InvalidRequestError, which blame the request's
    `field`, for a conversation that cannot be answered."""
    try:
        check_messages(messages)
    except InvalidRequestError as error:
        error.metadata.setdefault("param", field)
        raise


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
    called = [_call(call) for call in calls]
    if message.function_call is not None:
        called.append(_function_call("", message.function_call))
    content = message.content
    if message.role == "assistant" and isinstance(content, list):
        content = [replayed(part) for part in content]
    return Message(
        "tool" if message.role == "function" else message.role,
        text_of(f"{where}.content", content),
        tool_calls=tuple(called),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def replayed(part: ContentPart) -> ContentPart:
    """A part of an assistant's earlier message: of what is no text, its type is shown."""
    if part.type in TEXT_PARTS or part.type == "refusal":
        return part
    return ContentPart(type=TEXT_PARTS[0], text=part.text or f"[{part.type[:_MAX_NAME_CHARS]}]")


def _call(call: MessageToolCall) -> ToolCall:
    call_id = call.id or ""
    if call.custom is not None:
        return call_with_input(call_id, call.custom.name, "input", call.custom.input)
    if call.function is not None:
        return _function_call(call_id, call.function)
    return ToolCall(call_id, call.type)


def _function_call(call_id: str, function: CalledFunction) -> ToolCall:
    return ToolCall(call_id, function.name, arguments_in(function.arguments))


def text_of(where: str, content: str | Sequence[ContentPart] | None) -> str:
    """The text of a field, which may be in parts. Raises InvalidRequestError."""
    if content is None or isinstance(content, str):
        return content or ""
    check_num_parts(where, len(content))
    return _PART_SEPARATOR.join(
        _text(f"{where}[{number}]", part) for number, part in enumerate(content)
    )


def check_num_parts(where: str, count: int) -> None:
    """Raises InvalidRequestError for more parts than may be, before each costs."""
    if count > _MAX_PARTS:
        raise refused(where, f"{where} has at most {_MAX_PARTS} parts; join texts into one")


def _text(where: str, part: ContentPart) -> str:
    if part.type in TEXT_PARTS:
        return part.text or ""
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in _FILES:
        given = part.file or part
        text = text_of_file(where, part.type, given.file_data)
        return shown(text, given.filename)
    raise not_text(where, part.type)


def tools_of(given: Sequence[Tool], passed_over: PassedOver) -> tuple[str, ...]:
    """ChatRequest.tools: the tools that the model may call. Raises InvalidRequestError."""
    check_num_tools(len(given))
    definitions = []
    for number, tool in enumerate(given):
        if tool.type != "function":
            passed_over.add(f"tools[{number}]", tool.type)
        elif tool.function is None:
            raise refused(f"tools[{number}]", f"tools[{number}] has no function; send its name")
        else:
            definitions.append(_definition(tool.function))
    return check_tools(definitions)


def _definition(function: FunctionDefinition) -> str:
    fields: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        fields["description"] = function.description
    if is_given(function.parameters):
        fields["parameters"] = function.parameters
    return msgspec.json.encode(fields).decode()


def choice_of(given: msgspec.Raw, tools: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """ChatRequest.tool_choice, and the tools that it allows. Raises InvalidRequestError."""
    if not is_given(given):
        return AUTO, tools
    try:
        found = _choice_of(given)
    except (msgspec.ValidationError, RecursionError):
        found = ""
    if isinstance(found, str):
        return (check_choice(found, tools) if found in MODES else _no_choice()), tools
    if found.allowed_tools is not None and found.type == "allowed_tools":
        return allowed(
            found.allowed_tools.mode,
            [it.function.name for it in found.allowed_tools.tools if it.function is not None],
            tools,
        )
    name = found.function.name if found.function is not None and found.type == "function" else ""
    return (check_choice(name, tools) if name and name not in MODES else _no_choice()), tools


def allowed(
    mode: str, names: Collection[str], tools: tuple[str, ...]
) -> tuple[str, tuple[str, ...]]:
    """A tool_choice that allows functions of these names, of which the model may call some (auto)
    or has to (required); tools of other kinds that it allows are not run here, and left out. Raises
    InvalidRequestError."""
    if mode not in (AUTO, REQUIRED):
        raise refused("tool_choice", "the mode of allowed_tools is auto or required")
    left = only_tools(names, tools)
    return check_choice(mode, left), left


def _no_choice() -> str:
    raise refused(
        "tool_choice",
        'tool_choice is none, auto, required, or {"type": "function", "function": {"name": ...}} '
        "of one of the tools",
    )
