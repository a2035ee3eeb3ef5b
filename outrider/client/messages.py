"""Messages as programs write them: Message, or the dicts of the OpenAI API (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from outrider.errors import ConfigError
from outrider.models.chat import Message
from outrider.models.tools import ToolCall

_MAX_TYPE_CHARS: Final = 64
_EXAMPLE: Final = '[{"role": "user", "content": "hello"}]'


def read_messages(given: Iterable[Message | Mapping[str, Any]]) -> tuple[Message, ...]:
    """Read a conversation. Raises ConfigError, which says which message is invalid and why."""
    if isinstance(given, str | bytes | Mapping | Message) or not isinstance(given, Iterable):
        raise ConfigError(
            f"a conversation is a list of messages, such as {_EXAMPLE}, not one {_kind(given)}"
        )
    return tuple(_message(message, number) for number, message in enumerate(given))


def _message(message: Message | Mapping[str, Any], number: int) -> Message:
    if not isinstance(message, Message):
        message = _of_dict(message, f"message {number}")
    for name in ("role", "content", "tool_call_id", "name", "reasoning"):
        if not isinstance(getattr(message, name), str):
            value = getattr(message, name)
            _check_parts(value, f"message {number}: {name}")
            raise ConfigError(f"message {number}: {name} is text, not {_kind(value)}")
    return message


def _check_parts(value: object, where: str) -> None:
    """Raises ConfigError for content in parts, as the OpenAI API has it, that names the first that
    is no text."""
    for number, part in enumerate(value if isinstance(value, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind != "text":
            raise ConfigError(
                f"{where}[{number}] is of type {kind[:_MAX_TYPE_CHARS]!r}, and models here read "
                "only text; send text in its place, such as a description or a transcript"
            )


def _of_dict(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(f"{where} is {_kind(message)}; write messages as in {_EXAMPLE}")
    if "role" not in message:
        raise ConfigError(f'{where} has no role; write "system", "user" or "assistant"')
    if "content" not in message and "tool_calls" not in message:
        raise ConfigError(f"{where} has no content; write its text")
    content = message.get("content")
    return Message(
        message["role"],
        content or "" if "tool_calls" in message else content,  # type: ignore[arg-type]
        tuple(_tool_call(call, where) for call in message.get("tool_calls") or ()),
        message.get("tool_call_id") or "",
        message.get("name") or "",
        message.get("reasoning") or message.get("reasoning_content") or "",
    )


def _tool_call(call: ToolCall | Mapping[str, Any], where: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    try:
        function = call["function"]
        return ToolCall(call["id"], function["name"], function["arguments"])
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"a tool call of {where} needs an id and a function with name and arguments: {error}"
        ) from error


def _kind(value: object) -> str:
    """Type name of `value` for an error message, without its content."""
    return "None" if value is None else type(value).__name__
