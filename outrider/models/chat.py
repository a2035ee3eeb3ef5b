"""Chats: messages, limits for them, and the segments that a template makes of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import EmptyPromptError, InvalidRequestError, PromptTooLongError
from outrider.models.tools import ToolCall

SYSTEM_ROLES: Final = ("system", "developer")
"""Roles for the application's operator. A template without the role `developer` gets `system`."""
ROLES: Final = (*SYSTEM_ROLES, "user", "assistant", "tool")
MAX_MESSAGES: Final = 2048
MAX_CHAT_CHARS: Final = 1 << 20
"""Characters of all messages together; tool definitions have a limit of their own."""
MAX_TOOL_CALLS: Final = 128
"""Most tool calls of one message."""
MAX_NAME_CHARS: Final = 256
"""Most characters of `Message.name`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. Nothing is checked before `check_messages`."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that the assistant made in this message, whose content may then be empty."""
    tool_call_id: str = ""
    """Id of the call that a tool message answers."""
    name: str = ""
    """Name of the speaker, for templates that show it; a tool message with "" takes the name from
    its call."""
    reasoning: str = ""
    """The assistant's reasoning before its content, for templates that show it."""

    @property
    def num_chars(self) -> int:
        """Characters of all texts of the message, tool calls included."""
        own = len(self.content) + len(self.reasoning) + len(self.name) + len(self.tool_call_id)
        return own + sum(call.num_chars for call in self.tool_calls)


def num_chars_of(messages: Sequence[Message], tools: Sequence[str] = ()) -> int:
    """Characters of all texts in a chat."""
    return sum(message.num_chars for message in messages) + sum(map(len, tools))


def has_content(messages: Sequence[Message]) -> bool:
    """Whether any message has content or tool calls."""
    return any(message.content or message.tool_calls for message in messages)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered chat: one token that the template writes (a control token, or
    markup), or text, in which nothing is such a token."""

    text: str
    is_token: bool
    is_template: bool = field(default=False, compare=False)
    """Whether the text is the template's, the same for all messages and tools. Any other text
    belongs to its sender and is kept nowhere that others can look."""


def check_text(text: str) -> None:
    """Raises InvalidRequestError for text that is no Unicode (a lone surrogate)."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has a lone surrogate at character {error.start}; send valid Unicode"
        ) from error


def check_num_messages(count: int) -> None:
    """Raises InvalidRequestError for a chat of more messages than may be, before each costs."""
    if count > MAX_MESSAGES:
        raise InvalidRequestError(f"the chat has {count} messages; send at most {MAX_MESSAGES}")


def check_num_calls(count: int) -> None:
    """Raises InvalidRequestError for a message of more tool calls than may be."""
    if count > MAX_TOOL_CALLS:
        raise InvalidRequestError(
            f"a message has {count} tool calls; send at most {MAX_TOOL_CALLS}"
        )


def check_messages(messages: Sequence[Message]) -> None:
    """Raises EmptyPromptError, PromptTooLongError or InvalidRequestError for a chat that cannot be
    answered."""
    if not has_content(messages):
        raise EmptyPromptError("the chat has no text; send at least one message with content")
    check_num_messages(len(messages))
    num_chars = num_chars_of(messages)
    if num_chars > MAX_CHAT_CHARS:
        raise PromptTooLongError.of_text("the chat", num_chars, MAX_CHAT_CHARS)
    for number, message in enumerate(messages):
        _check_message(f"messages[{number}]", message)


def check_continued(messages: Sequence[Message]) -> None:
    """Raises InvalidRequestError, which names the message, for a chat whose last message no reply
    can continue."""
    last, where = messages[-1], f"messages[{len(messages) - 1}]"
    why = ""
    if last.role != "assistant":
        why = f"the role is {last.role}; only the assistant's message can be continued"
    elif last.tool_calls:
        why = "it calls tools; send their results"
    elif last.content != last.content.rstrip():
        why = "the final assistant content cannot end with trailing whitespace; leave it out"
    elif not last.content:
        why = "it is empty, so that nothing can be continued; leave it out"
    if why:
        raise InvalidRequestError(f"{where}: {why}", metadata={"param": where})


def _check_message(where: str, message: Message) -> None:
    """Raises InvalidRequestError, which names the message and the field."""

    def refused(field: str, why: str) -> InvalidRequestError:
        place = f"{where}.{field}"
        return InvalidRequestError(f"{place}: {why}", metadata={"param": place})

    role = message.role
    if role not in ROLES:
        raise refused("role", f"role {role[:32]!r} is not known; use one of {', '.join(ROLES)}")
    if role != "assistant" and message.tool_calls:
        raise refused("tool_calls", f"the role is {role}; only the assistant's messages have calls")
    if role != "assistant" and message.reasoning:
        raise refused("reasoning", f"the role is {role}; only the assistant's messages have it")
    if role != "tool" and message.tool_call_id:
        raise refused("tool_call_id", f"the role is {role}; only a tool's results have one")
    check_num_calls(len(message.tool_calls))
    if len(message.name) > MAX_NAME_CHARS:
        raise refused("name", f"a name has at most {MAX_NAME_CHARS} characters")
    for text in (message.content, message.name, message.reasoning, message.tool_call_id):
        check_text(text)
    for call in message.tool_calls:
        for text in (call.id, call.name, call.arguments):
            check_text(text)
