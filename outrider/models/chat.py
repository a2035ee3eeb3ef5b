"""Chats: messages, what they may hold, and the segments that a template makes of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from outrider.errors import EmptyPromptError, InvalidRequestError
from outrider.models.tools import ToolCall, check_call, check_id

SYSTEM_ROLES: Final = ("system", "developer")
"""What the operator of an application says. A template that knows no developer gets a system."""
ROLES: Final = (*SYSTEM_ROLES, "user", "assistant", "tool")
MAX_MESSAGES: Final = 512
MAX_CHAT_CHARS: Final = 1 << 20
"""Characters of all messages together; those of tools are bounded apart."""
MAX_TOOL_CALLS: Final = 128
"""Of one message."""
MAX_NAME_CHARS: Final = 256
"""Of `Message.name`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. Nothing is checked before `check_messages`."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant: what it called. Its content may be empty."""
    tool_call_id: str = ""
    """Of a tool: the call that it answers."""
    name: str = ""
    """Who speaks, for templates that show it; of a tool "" is the name that its call has."""
    reasoning: str = ""
    """Of an assistant: what it thought first, for templates that show it."""

    @property
    def num_chars(self) -> int:
        """Of all its texts."""
        own = len(self.content) + len(self.reasoning) + len(self.name) + len(self.tool_call_id)
        return own + sum(call.num_chars for call in self.tool_calls)


def num_chars_of(messages: Sequence[Message], tools: Sequence[str] = ()) -> int:
    """Characters of all texts in a chat."""
    return sum(message.num_chars for message in messages) + sum(map(len, tools))


def has_content(messages: Sequence[Message]) -> bool:
    """Whether a chat says anything."""
    return any(message.content or message.tool_calls for message in messages)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered chat: one control token, or text that holds none."""

    text: str
    is_control: bool
    is_template: bool = field(default=False, compare=False)
    """The text is the same whatever the messages and tools say. Any other text is its sender's
    alone, and kept nowhere that others can look."""


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
    """Raises EmptyPromptError or InvalidRequestError for a chat that cannot be answered."""
    if not has_content(messages):
        raise EmptyPromptError("the chat has no text; send at least one message with content")
    check_num_messages(len(messages))
    num_chars = num_chars_of(messages)
    if num_chars > MAX_CHAT_CHARS:
        raise InvalidRequestError(
            f"the chat has {num_chars} characters; send at most {MAX_CHAT_CHARS}"
        )
    for message in messages:
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"role {message.role[:32]!r} is not known; use one of {', '.join(ROLES)}"
            )
        check_text(message.content)
        _check_extras(message)


def _check_extras(message: Message) -> None:
    """What a message may hold besides its content. Raises InvalidRequestError."""
    if message.role != "assistant" and (message.tool_calls or message.reasoning):
        raise InvalidRequestError(
            f"a message of role {message.role} has tool calls or reasoning; only the assistant's do"
        )
    if message.role != "tool" and message.tool_call_id:
        raise InvalidRequestError(
            f"a message of role {message.role} has a tool_call_id; only a tool's result has"
        )
    check_num_calls(len(message.tool_calls))
    if len(message.name) > MAX_NAME_CHARS:
        raise InvalidRequestError(f"the name of a message has at most {MAX_NAME_CHARS} characters")
    check_id(message.tool_call_id)
    for call in message.tool_calls:
        check_call(call)
        check_text(call.arguments)
    check_text(message.name)
    check_text(message.reasoning)
