"""Conversations as programs write them, and what is said of what is none."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.client.messages import read_messages
from outrider.errors import ConfigError
from outrider.models.chat import Message
from outrider.models.tools import ToolCall

HELLO = {"role": "user", "content": "hello"}
TEXT = {"type": "text", "text": "what is this?"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}


def test_messages_and_dicts_are_welcome_side_by_side() -> None:
    asked = read_messages([Message("system", "be kind"), HELLO])
    assert asked == (Message("system", "be kind"), Message("user", "hello"))
    assert read_messages(iter([HELLO])) == (Message("user", "hello"),)


def test_a_message_that_calls_a_tool_needs_no_content() -> None:
    (message,) = read_messages([{"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert message.content == "" and message.tool_calls == (ToolCall("1", "f", "{}"),)
    answer = {"role": "tool", "content": "-3", "tool_call_id": "1"}
    assert read_messages([answer]) == (Message("tool", "-3", tool_call_id="1"),)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("hello", "a conversation is a list of messages.* not one str"),
        (5, "not one int"),
        (HELLO, "not one dict"),
        (Message("user", "hello"), "not one Message"),
        ([HELLO, "hello"], "message 1 is str; write messages as in"),
        ([("user", "hello")], "message 0 is tuple"),
        ([{"content": "x"}], "message 0 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": None}], "message 0: content is text, not None"),
        ([{"role": "user", "content": ["x"]}], "message 0: content is text, not list"),
        ([{"role": "user", "content": [PICTURE]}], r"0: content\[0\] is of type 'image_url'"),
        ([{"role": "user", "content": [TEXT, PICTURE]}], r"content\[1\] is .* send text"),
        ([{"role": "user", "content": [TEXT]}], "message 0: content is text, not list"),
        ([Message(5, "x")], "message 0: role is text, not int"),  # type: ignore[arg-type]
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "a tool call of message 0 needs"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "a tool call of message 0 needs"),
    ],
)
def test_what_is_no_conversation_gets_a_sentence(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_messages(given)
