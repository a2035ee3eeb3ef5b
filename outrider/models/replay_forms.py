"""Earlier turns in other forms, for chat templates that refuse them as they are. Pure.

A client can only send again what an assistant said before, so nothing in it may end a conversation.
The call that a length limit cut off, two calls at once, and ids in another server's form are valid
history; many templates raise an error for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from outrider.models.chat import Message
from outrider.models.tools import ToolCall, UnreadArguments, read_arguments

_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
"""The only ids that templates of Mistral's models accept."""
_SEPARATOR: Final = "\n"


def replay_forms(
    messages: Sequence[Message], *, shows_calls: bool
) -> Iterator[tuple[Message, ...]]:
    """A chat as it is, then in ever simpler forms, the most faithful first:

    1. ids of nine letters and digits, and arguments that are always JSON objects;
    2. besides, one call in each message, each with its result behind it;
    3. calls and their results as text, and messages of one role in a row as one message.

    `shows_calls`: whether the template shows calls and results; without, they are text at once.
    """
    has_calls = any(it.tool_calls or it.role == "tool" for it in messages)
    if shows_calls or not has_calls:
        yield tuple(messages)
    if shows_calls and has_calls:
        usual = tuple(map(_usual, messages))
        yield usual
        yield tuple(_one_call_each(usual))
    joined = _joined(_as_text(messages))
    if has_calls or len(joined) < len(messages):
        yield joined


def _usual(message: Message) -> Message:
    if message.role == "tool":
        return replace(message, tool_call_id=_short(message.tool_call_id))
    calls = (ToolCall(_short(it.id), it.name, _object(it)) for it in message.tool_calls)
    return replace(message, tool_calls=tuple(calls))


def _short(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def _object(call: ToolCall) -> str:
    if isinstance(read_arguments(call), UnreadArguments):
        return json.dumps({"arguments": call.arguments}, ensure_ascii=False)
    return call.arguments


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """The results of a message's calls are the tool messages that follow it."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.tool_calls) < 2:
            yield message
            continue
        results = list[Message]()
        while at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(message.tool_calls):
            one = replace(message, tool_calls=(call,))
            yield one if number == 0 else replace(one, content="", reasoning="")
            yield from (it for it in results if it.tool_call_id == call.id)
        ids = {call.id for call in message.tool_calls}
        yield from (it for it in results if it.tool_call_id not in ids)


def _as_text(messages: Sequence[Message]) -> Iterator[Message]:
    names = dict[str, str]()
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool":
            name = message.name or names.get(message.tool_call_id, "")
            of_tool = f" of {name}" if name else ""
            yield Message("user", f"Result{of_tool}: {message.content}")
        elif message.tool_calls:
            texts = [message.content] if message.content else []
            texts += map(_written, message.tool_calls)
            yield replace(message, content=_SEPARATOR.join(texts), tool_calls=())
        else:
            yield message


def _written(call: ToolCall) -> str:
    arguments = read_arguments(call)
    return json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)


def _joined(messages: Iterator[Message]) -> tuple[Message, ...]:
    made = list[Message]()
    for message in messages:
        before = made[-1] if made else None
        if before is None or (before.role, before.name) != (message.role, message.name):
            made.append(message)
            continue
        contents = [it.content for it in (before, message) if it.content]
        thoughts = [it.reasoning for it in (before, message) if it.reasoning]
        made[-1] = replace(
            before, content=_SEPARATOR.join(contents), reasoning=_SEPARATOR.join(thoughts)
        )
    return tuple(made)
