"""The routes of HTTP that answer chats: how each is asked, and where its answers have what. A
scenario is written once, over CHAT_ROUTES."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pytest
from anthropic import AsyncAnthropic

from tests.edge.http.asking import events_of
from tests.edge.integration.http_client import KEY, official, url
from tests.edge.integration.running import Running

USER: Final[Any] = {"role": "user", "content": "hello"}
PARAMETERS: Final = {"type": "object", "properties": {"city": {"type": "string"}}}


class Told(NamedTuple):
    """What an official client made of an answer."""

    text: str
    num_tokens: int
    """Completion tokens."""
    end: str
    """Why the reply ended, in the words of the API."""
    num_pieces: int = 1
    """Of text; of a stream, as they came."""


@dataclass(frozen=True, slots=True)
class Tools:
    """How a route of chats is asked with a tool."""

    fields: Mapping[str, Any]
    """The tool "get_weather" with PARAMETERS."""
    forced: Mapping[str, Any]
    """That it has to be called."""
    calls: Callable[[Any], list[tuple[str, Any]]]
    """Name and arguments of the calls in an answer's body; arguments as text or as a value."""
    arguments: Callable[[Any], str]
    """What an event adds to the arguments of a call."""
    answered: Callable[[Any], Mapping[str, Any]]
    """The fields of the request that goes on behind an answer with a call."""
    count_path: str = ""
    """Where its tokens can be counted; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """One route."""

    path: str
    body: Mapping[str, Any]
    """The least that asks for a reply of as many tokens as the tests' regions have."""
    text: Callable[[Any], str]
    """In an answer's body."""
    delta: Callable[[Any], str]
    """What an event of a stream adds to it."""
    official: Callable[[Running, bool], Awaitable[Told]]
    """The answer to `body`, as a stream or not, as the API's own package reads it."""
    end: str
    """Why a reply that ended by itself did, in the words of the API."""
    stop: str
    """The field of the strings that end a reply."""
    failure: Callable[[Any], bool]
    """Whether an event says that the reply failed."""
    rates: str = "x-ratelimit-{what}-{of}"
    """The headers that tell what is left of a limit."""
    schema: Callable[[Any], Mapping[str, Any]] | None = None
    """Fields that ask for JSON of a schema."""
    tools: Tools | None = None
    has_choices: bool = False
    """Whether a request may ask for several replies."""

    def __str__(self) -> str:
        return self.path

    @property
    def streamed(self) -> dict[str, Any]:
        """`body`, answered by events."""
        return {**self.body, "stream": True}

    def text_of(self, stream: bytes) -> str:
        """The text that the whole events of a stream have told."""
        return "".join(map(self.delta, data_of(stream)))


def data_of(stream: bytes) -> list[Any]:
    """What the events say that have come whole, but for the word that ends some streams."""
    whole = stream[: stream.rfind(b"\n\n") + 2]
    events = [it.get("data", "[DONE]") for it in events_of(whole)] if whole else []
    return [json.loads(data) for data in events if data != "[DONE]"]


# Chat completions, and completions.


def _choice(data: Any) -> Any:
    return (data.get("choices") or [{}])[0]


def _calls_of_deltas(event: Any) -> str:
    calls = _choice(event).get("delta", {}).get("tool_calls", ())
    return "".join(it["function"].get("arguments", "") for it in calls)


def _calls_of_choice(answer: Any) -> list[tuple[str, Any]]:
    calls = [it["function"] for it in _choice(answer)["message"].get("tool_calls", ())]
    return [(it["name"], it["arguments"]) for it in calls]


def _answered_chat(answer: Any) -> Mapping[str, Any]:
    said = _choice(answer)["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "rain"}
    return {"messages": [USER, said, result]}


async def _official_chat(mesh: Running, stream: bool) -> Told:
    async with official(mesh) as client:
        create: Any = client.chat.completions.create
        if not stream:
            answer = await create(**CHAT.body)
            (choice,) = answer.choices
            assert (answer.model, choice.message.role) == ("small", "assistant")
            assert answer.id.startswith("chatcmpl-")
            assert answer.usage.prompt_tokens_details is not None
            tokens = answer.usage.completion_tokens
            return Told(choice.message.content, tokens, choice.finish_reason)
        chunks = await create(**CHAT.streamed, stream_options={"include_usage": True})
        *parts, last = [it async for it in chunks]
        choices = [it.choices[0] for it in parts]
        assert choices[0].delta.role == "assistant"
        texts = [it.delta.content for it in choices if it.delta.content]
        end = choices[-1].finish_reason
        return Told("".join(texts), last.usage.completion_tokens, end, len(texts))


async def _official_completion(mesh: Running, stream: bool) -> Told:
    async with official(mesh) as client:
        create: Any = client.completions.create
        if not stream:
            answer = await create(**COMPLETION.body)
            (choice,) = answer.choices
            return Told(choice.text, answer.usage.completion_tokens, choice.finish_reason)
        chunks = await create(**COMPLETION.streamed, stream_options={"include_usage": True})
        *parts, last = [it async for it in chunks]
        texts = [it.choices[0].text for it in parts if it.choices[0].text]
        end = parts[-1].choices[0].finish_reason
        return Told("".join(texts), last.usage.completion_tokens, end, len(texts))


CHAT: Final = ChatRoute(
    "/v1/chat/completions",
    {"model": "small", "messages": [USER]},
    text=lambda answer: _choice(answer)["message"]["content"],
    delta=lambda event: _choice(event).get("delta", {}).get("content") or "",
    official=_official_chat,
    end="stop",
    stop="stop",
    failure=lambda event: "error" in event,
    schema=lambda schema: {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "strict": True, "schema": schema},
        }
    },
    tools=Tools(
        {
            "tools": [
                {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
            ]
        },
        forced={"tool_choice": "required"},
        calls=_calls_of_choice,
        arguments=_calls_of_deltas,
        answered=_answered_chat,
    ),
    has_choices=True,
)
COMPLETION: Final = ChatRoute(
    "/v1/completions",
    {"model": "small", "prompt": "<|im_start|>user\nhello<|im_end|>\n", "max_tokens": 99},
    text=lambda answer: _choice(answer)["text"],
    delta=lambda event: _choice(event).get("text", ""),
    official=_official_completion,
    end="stop",
    stop="stop",
    failure=lambda event: "error" in event,
    has_choices=True,
)


# Messages.


async def _official_message(mesh: Running, stream: bool) -> Told:
    async with AsyncAnthropic(base_url=url(mesh), api_key=KEY, max_retries=0) as client:
        asked: dict[str, Any] = dict(MESSAGE.body)
        count = await client.messages.count_tokens(model="small", messages=[USER])
        if not stream:
            answer = await client.messages.create(**asked)
            (block,) = answer.content
            assert block.type == "text" and answer.model == "small"
            return Told(block.text, answer.usage.output_tokens, answer.stop_reason or "")
        async with client.messages.stream(**asked) as events:
            first, *others = [it async for it in events]
            whole = await events.get_final_message()
        assert first.type == "message_start"
        assert first.message.usage.input_tokens == count.input_tokens
        deltas = [it.delta for it in others if it.type == "content_block_delta"]
        texts = [it.text for it in deltas if it.type == "text_delta"]
        tokens = whole.usage.output_tokens
        return Told("".join(texts), tokens, whole.stop_reason or "", len(texts))


def _answered_message(answer: Any) -> Mapping[str, Any]:
    result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "rain"}
    said = {"role": "assistant", "content": answer["content"]}
    return {"messages": [USER, said, {"role": "user", "content": [result]}]}


MESSAGE: Final = ChatRoute(
    "/v1/messages",
    {"model": "small", "max_tokens": 99, "messages": [USER]},
    text=lambda answer: "".join(it["text"] for it in answer["content"] if it["type"] == "text"),
    delta=lambda event: event.get("delta", {}).get("text", ""),
    official=_official_message,
    end="end_turn",
    stop="stop_sequences",
    failure=lambda event: event["type"] == "error",
    rates="anthropic-ratelimit-{of}-{what}",
    schema=lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    tools=Tools(
        {"tools": [{"name": "get_weather", "input_schema": PARAMETERS}]},
        forced={"tool_choice": {"type": "tool", "name": "get_weather"}},
        calls=lambda answer: [
            (it["name"], it["input"]) for it in answer["content"] if it["type"] == "tool_use"
        ],
        arguments=lambda event: event.get("delta", {}).get("partial_json", ""),
        answered=_answered_message,
        count_path="/v1/messages/count_tokens",
    ),
)


# Responses.


def _texts_of_items(answer: Any) -> str:
    messages = [it for it in answer["output"] if it["type"] == "message"]
    return "".join(part["text"] for it in messages for part in it["content"])


def _told_by(kind: str) -> Callable[[Any], str]:
    return lambda event: event["delta"] if event["type"] == f"response.{kind}.delta" else ""


def _answered_response(answer: Any) -> Mapping[str, Any]:
    call = answer["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    return {"input": [USER, *answer["output"], output]}


async def _official_response(mesh: Running, stream: bool) -> Told:
    async with official(mesh) as client:
        asked: dict[str, Any] = dict(RESPONSE.body)
        if stream:
            async with client.responses.stream(**asked) as events:
                told = [it async for it in events]
                answer: Any = await events.get_final_response()
            assert told[0].type == "response.created"
            assert [it.sequence_number for it in told] == list(range(len(told)))
            texts = [it.delta for it in told if it.type == "response.output_text.delta"]
        else:
            answer = await client.responses.create(**asked)
            texts = [answer.output_text]
        assert answer.model == "small"
        return Told("".join(texts), answer.usage.output_tokens, answer.status, len(texts))


RESPONSE: Final = ChatRoute(
    "/v1/responses",
    {"model": "small", "input": "hello"},
    text=_texts_of_items,
    delta=_told_by("output_text"),
    official=_official_response,
    end="completed",
    stop="",
    failure=lambda event: event["type"] == "response.failed",
    schema=lambda schema: {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    },
    tools=Tools(
        {"tools": [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}]},
        forced={"tool_choice": "required"},
        calls=lambda answer: [
            (it["name"], it["arguments"])
            for it in answer["output"]
            if it["type"] == "function_call"
        ],
        arguments=_told_by("function_call_arguments"),
        answered=_answered_response,
        count_path="/v1/responses/input_tokens",
    ),
)
CHAT_ROUTES: Final = (CHAT, COMPLETION, MESSAGE, RESPONSE)

over_chat_routes = pytest.mark.parametrize("route", CHAT_ROUTES, ids=str)
over_tool_routes = pytest.mark.parametrize(
    "route", [it for it in CHAT_ROUTES if it.tools is not None], ids=str
)
