"""Chats with tools over real QUIC and real gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.client import (
    Accepted,
    ArgumentsDelta,
    Client,
    Committed,
    ContentDelta,
    Message,
    ToolCall,
    ToolCallBegun,
    ToolCallEnded,
    Transcript,
)
from outrider.errors import InvalidRequestError
from outrider.models.tools import tool_text
from outrider.models.vocabulary import Vocabulary
from outrider.wire import message_from_proto
from tests.edge.integration.running import Running, running
from tests.edge.integration.trouble import said
from tests.models import tool_templates

ASK = [Message("user", "Is it cold?")]
WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
OPENAI = {"type": "function", "function": WEATHER}
ARGUMENTS = '{"city": "Zürich"}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
REPLIES = {
    "hermes": f"I look.\n<tool_call>\n{CALL}\n</tool_call>",
    "thinking": f"<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{CALL}\n</tool_call>",
    "llama3": f"I look. <|python_tag|>{CALL}",
    "mistral": f"I look. [TOOL_CALLS] [{CALL}]",
    "mistral_args": f"I look. [TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}",
}


def reply_ids(vocabulary: Vocabulary, reply: str) -> tuple[int, ...]:
    """As a model writes it: markers are control tokens where the vocabulary has them."""
    ids: list[int] = []
    while reply:
        found = [
            (at, marker)
            for marker in ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
            if vocabulary.find_control(marker) is not None and (at := reply.find(marker)) >= 0
        ]
        at, marker = min(found, default=(len(reply), ""))
        ids += vocabulary.encode(reply[:at])
        ids += [vocabulary.token_id(marker)] if marker else []
        reply = reply[at + len(marker) :]
    return (*ids, min(vocabulary.stop_ids))


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("family", REPLIES)
async def test_calls_come_as_events_and_in_the_result(
    family: str, thin: bool, tmp_path: Path
) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.FAMILIES[family])
    reply = REPLIES[family]
    async with running(vocabulary, tmp_path, reply) as mesh, mesh.client() as client:
        mesh.region.reply = reply_ids(vocabulary, reply)
        transcript, events = Transcript(), []
        async with client.chat(ASK, tools=[OPENAI], thin=thin) as chat:
            async for event in chat:
                transcript.apply(event)
                events.append(event)
            result = await chat.result()
        accepted = next(it for it in events if isinstance(it, Accepted))
        assert accepted.reply_format is not None
        assert result.text == transcript.committed == reply, "the model's own text"
        assert "".join(it.text for it in events if isinstance(it, Committed)) == reply
        assert result.content == "I look."
        assert result.reasoning == ("Hm." if family == "thinking" else "")
        (call,) = result.tool_calls
        assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)
        begun = next(it for it in events if isinstance(it, ToolCallBegun))
        assert (begun.index, begun.id, begun.name) == (0, call.id, call.name)
        pieces = [it.text for it in events if isinstance(it, ArgumentsDelta)]
        assert "".join(pieces) == ARGUMENTS
        if not thin:
            assert len(pieces) > 1, "as they come"
        assert [it.is_whole for it in events if isinstance(it, ToolCallEnded)] == [True]
        assert "".join(it.text for it in events if isinstance(it, ContentDelta)) == "I look."
        opened = mesh.region.opened[0]
        if thin:
            assert list(opened.messages.tools) == [tool_text(WEATHER)]
        else:
            prompt = vocabulary.encode_chat(ASK, [tool_text(WEATHER)])
            assert opened.ids.tail.count == len(prompt) == accepted.prompt_tokens
        await mesh.settled()


async def test_a_chat_goes_on_behind_its_calls(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with running(vocabulary, tmp_path, REPLIES["hermes"]) as mesh, mesh.client() as client:
        async with client.chat(ASK, tools=[WEATHER]) as chat:
            result = await chat.result()
        (call,) = result.tool_calls
        told = [*ASK, result.message, Message("tool", "-3", tool_call_id=call.id)]
        await said(client.chat(told, tools=[WEATHER], thin=True))
        opened = mesh.region.opened[-1].messages
        assert [message_from_proto(it) for it in opened.messages] == told
        await mesh.settled()


async def test_ids_of_calls_are_the_requests(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with running(vocabulary, tmp_path, REPLIES["hermes"]) as mesh, mesh.client() as client:
        ids = []
        for key in ("one", "one", "two"):
            async with client.chat(ASK, tools=[WEATHER], idempotency_key=key) as chat:
                ids += [call.id for call in (await chat.result()).tool_calls]
        assert ids[0] == ids[1] != ids[2]
        async with client.chat(ASK, tools=[WEATHER]) as chat:
            whole = await chat.result()
            async with client.resume(chat.resume_token) as again:
                same = await again.result()
        assert (same.tool_calls, same.content) == (whole.tool_calls, whole.content)
        await mesh.settled()


async def test_plain_chats_are_as_they_were(tmp_path: Path) -> None:
    """Of the same model: control tokens have no text, and nothing is read in it."""
    vocabulary = tool_templates.vocabulary_of(tool_templates.MISTRAL)
    async with running(vocabulary, tmp_path, "x") as mesh, mesh.client() as client:
        mesh.region.reply = reply_ids(vocabulary, REPLIES["mistral"])
        for options in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
            async with client.chat(ASK, **options) as chat:  # type: ignore[arg-type]
                events = [event async for event in chat]
                result = await chat.result()
            assert result.text == result.content == REPLIES["mistral"].replace("[TOOL_CALLS]", "")
            assert result.tool_calls == ()
            assert not any(isinstance(it, ContentDelta | ToolCallBegun) for it in events)
            assert isinstance(events[0], Accepted) and events[0].reply_format is None
            assert not mesh.region.opened[-1].sampling.special_tokens
        prompts = {opened.ids.tail.count for opened in mesh.region.opened}
        assert len(prompts) == 1
        await mesh.settled()


async def test_a_model_without_tools_refuses_them(mesh: Running, client: Client) -> None:
    for thin in (False, True):
        async with client.chat(ASK, tools=[WEATHER], thin=thin) as chat:
            with pytest.raises(InvalidRequestError, match="shows no tools"):
                await chat.result()
    assert not mesh.region.opened


async def test_a_model_without_tools_is_shown_earlier_calls_as_text(
    mesh: Running, client: Client
) -> None:
    said = [*ASK, Message("assistant", "", (ToolCall("a", "f", '{"cut'),)), *ASK]
    for thin in (False, True):
        async with client.chat(said, thin=thin) as chat:
            assert (await chat.result()).text
    assert len(mesh.region.opened) == 2
