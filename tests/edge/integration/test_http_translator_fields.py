"""What the official anthropic and openai packages ask for besides text by Messages and
Responses, of a real edge: tools, schemas, log probabilities, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from outrider.models.vocabulary import Vocabulary
from services.edge.identity import TenantConfig
from tests.edge.http.asking import events_of
from tests.edge.http.specifications import anthropic_faults, event_faults, responses_faults
from tests.edge.integration.http_client import official, plain, serving_http
from tests.edge.integration.test_http_translators import (
    BOTH,
    MESSAGE,
    REPLY,
    RESPONSE,
    USER,
    anthropics,
)
from tests.edge.integration.test_tools import ARGUMENTS, REPLIES
from tests.models import tool_templates

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"name": "get_weather", "description": "Of a city.", "input_schema": PARAMETERS}
FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": PARAMETERS,
    "strict": True,
}
USERS: Any = [USER]
LOGPROBS: Any = "message.output_text.logprobs"


async def test_messages_call_tools_and_take_their_results(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        anthropics(mesh) as client,
    ):
        message = await client.messages.create(**MESSAGE, tools=[TOOL])
        assert message.stop_reason == "tool_use"
        text, call = message.content
        assert text.type == "text" and text.text == "I look."
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("get_weather", json.loads(ARGUMENTS))

        async with client.messages.stream(**MESSAGE, tools=[TOOL]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
        assert "".join(it.partial_json for it in events if it.type == "input_json") == ARGUMENTS
        assert events[0].type == "message_start"
        assert [it.type for it in final.content] == ["text", "tool_use"]
        assert final.stop_reason == "tool_use"

        said: Any = {"role": "assistant", "content": message.content}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        messages: Any = [USER, said, {"role": "user", "content": [result]}]
        again = await client.messages.create(
            model="small", max_tokens=99, messages=messages, tools=[TOOL]
        )
        assert again.stop_reason == "tool_use"
        async with plain(mesh) as raw:
            answer = await raw.post("/v1/messages", json=MESSAGE | {"tools": [TOOL]})
            assert anthropic_faults(answer.json(), "Message") == []

        bare = await client.messages.count_tokens(model="small", messages=USERS)
        shown = await client.messages.count_tokens(model="small", messages=USERS, tools=[TOOL])
        hidden = await client.messages.count_tokens(
            model="small", messages=USERS, tools=[TOOL], tool_choice={"type": "none"}
        )
        assert shown.input_tokens > bare.input_tokens == hidden.input_tokens
        assert shown.input_tokens == events[0].message.usage.input_tokens

        await client.messages.create(
            **MESSAGE, tools=[TOOL], tool_choice={"type": "tool", "name": "get_weather"}
        )
        grammar = mesh.region.opened[-1].sampling.grammar
        assert "get_weather" in grammar.text
        await mesh.settled()


async def test_responses_call_functions_and_take_their_outputs(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        official(mesh) as client,
    ):
        response = await client.responses.create(**RESPONSE, tools=[FUNCTION])
        assert response.output_text == "I look."
        call = response.output[-1]
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)

        async with client.responses.stream(**RESPONSE, tools=[FUNCTION]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        deltas = [it.delta for it in events if it.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == ARGUMENTS
        assert [it.type for it in final.output] == ["message", "function_call"]

        items: Any = [
            USER,
            *[it.to_dict() for it in response.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ]
        again = await client.responses.create(model="small", input=items, tools=[FUNCTION])
        assert again.status == "completed"
        bare = await client.responses.input_tokens.count(**RESPONSE)
        shown = await client.responses.input_tokens.count(**RESPONSE, tools=[FUNCTION])
        assert shown.input_tokens > bare.input_tokens

        await client.responses.create(**RESPONSE, tools=[FUNCTION], tool_choice="required")
        grammar = mesh.region.opened[-1].sampling.grammar
        assert "get_weather" in grammar.text
        async with plain(mesh) as raw:
            asked = RESPONSE | {"tools": [FUNCTION]}
            whole = await raw.post("/v1/responses", json=asked)
            assert responses_faults(whole.json(), "ResponseResource") == []
            streamed = await raw.post("/v1/responses", json=asked | {"stream": True})
            told = [json.loads(it["data"]) for it in events_of(streamed.content)]
            assert [fault for it in told for fault in event_faults(it)] == []
        await mesh.settled()


@pytest.mark.parametrize(("path", "asked"), BOTH)
async def test_a_stream_of_calls_goes_on_after_its_connection_was_lost(
    tmp_path: Path, path: str, asked: dict[str, Any]
) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    tool = TOOL if path == "/v1/messages" else FUNCTION
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        body = asked | {"tools": [tool], "stream": True}
        headers = {"idempotency-key": "k"}
        whole = events_of((await client.post(path, json=body, headers=headers)).content)
        places = [at for at, it in enumerate(whole) if "id" in it][:-1]
        assert len(places) > 4
        for at in places:
            had = {**headers, "last-event-id": whole[at]["id"]}
            rest = events_of((await client.post(path, json=body, headers=had)).content)
            both = [json.loads(it["data"]) for it in [*whole[: at + 1], *rest]]
            assert _arguments(both) == ARGUMENTS
            begun = [it["type"] for it in both if it["type"].endswith(("block_start", ".added"))]
            assert begun == [
                it
                for it in (json.loads(event["data"])["type"] for event in whole)
                if it.endswith(("block_start", ".added"))
            ], "nothing begins twice"
        assert len(mesh.region.opened) == 1, "nothing was computed twice"
        await mesh.settled()


def _arguments(events: list[dict[str, Any]]) -> str:
    pieces = []
    for event in events:
        if event["type"] == "content_block_delta":
            pieces.append(event["delta"].get("partial_json", ""))
        elif event["type"] == "response.function_call_arguments.delta":
            pieces.append(event["delta"])
    return "".join(pieces)


async def test_schemas_reach_the_region_with_and_without_tools(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    config: Any = {"format": {"type": "json_schema", "schema": PARAMETERS}}
    text: Any = {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}}
    async with (
        serving_http(vocabulary, tmp_path, REPLY) as mesh,
        anthropics(mesh) as messages,
        official(mesh) as responses,
    ):
        await messages.messages.create(**MESSAGE, output_config=config)
        await responses.responses.create(**RESPONSE, text=text)
        for opened in mesh.region.opened:
            assert opened.sampling.grammar.text == json.dumps(PARAMETERS, separators=(",", ":"))
        await messages.messages.create(**MESSAGE, output_config=config, tools=[TOOL])
        await responses.responses.create(**RESPONSE, text=text, tools=[FUNCTION])
        for opened in mesh.region.opened[2:]:
            assert "(calls | answer)" in opened.sampling.grammar.text
        await mesh.settled()


async def test_responses_tell_log_probabilities_with_their_text(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        asked: Any = RESPONSE | {"include": [LOGPROBS], "top_logprobs": 3}
        response = await client.responses.create(**asked)
        (item,) = response.output
        assert item.type == "message"
        (part,) = item.content
        assert part.type == "output_text" and part.logprobs is not None
        assert "".join(it.token for it in part.logprobs) == REPLY
        assert all(len(it.top_logprobs) == 3 for it in part.logprobs)
        told: list[tuple[str, float]] = []
        async with client.responses.stream(**asked) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    assert "".join(it.token for it in event.logprobs) == event.delta
                    told += [(it.token, it.logprob) for it in event.logprobs]
        whole = [(it.token, it.logprob) for it in part.logprobs]
        assert [it for it in told if it[0]] == [it for it in whole if it[0]]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**asked | {"top_logprobs": 21})
        assert refused.value.param == "top_logprobs"
        await mesh.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tenant_is_told_what_is_left_in_the_words_of_each_api(
    words: Vocabulary, tmp_path: Path, stream: bool
) -> None:
    limited = TenantConfig("acme", requests_per_minute=2, output_tokens_per_minute=10_000)
    async with serving_http(
        words, tmp_path, REPLY, tenants=(limited, TenantConfig("bolt"))
    ) as mesh:
        async with plain(mesh) as client:
            answer = await client.post("/v1/messages", json=MESSAGE | {"stream": stream})
            assert answer.headers["anthropic-ratelimit-requests-limit"] == "2"
            assert answer.headers["anthropic-ratelimit-requests-remaining"] == "1"
            assert answer.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
            assert answer.headers["anthropic-ratelimit-output-tokens-limit"] == "10000"
            assert not any(name.startswith("x-ratelimit") for name in answer.headers)
            answer = await client.post("/v1/responses", json=RESPONSE | {"stream": stream})
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            answer = await client.post("/v1/messages", json=MESSAGE | {"stream": stream})
            assert answer.status_code == 429
            assert answer.headers["anthropic-ratelimit-requests-remaining"] == "0"
            assert int(answer.headers["retry-after"]) >= 1
            assert anthropic_faults(answer.json(), "ErrorResponse") == []
        async with anthropics(mesh) as client_of_messages:
            with pytest.raises(anthropic.RateLimitError) as refused:
                await client_of_messages.messages.create(**MESSAGE)
            assert refused.value.type == "rate_limit_error"
        async with official(mesh) as client_of_responses:
            with pytest.raises(openai.RateLimitError):
                await client_of_responses.responses.create(**RESPONSE)
        assert len(mesh.region.opened) == 2
        await mesh.settled()


async def test_a_model_that_calls_no_tools_says_so_to_both(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        serving_http(words, tmp_path, REPLY) as mesh,
        anthropics(mesh) as messages,
        official(mesh) as responses,
    ):
        with pytest.raises(anthropic.BadRequestError, match="shows no tools"):
            await messages.messages.create(**MESSAGE, tools=[TOOL])
        with pytest.raises(anthropic.BadRequestError, match="shows no tools"):
            await messages.messages.count_tokens(model="small", messages=USERS, tools=[TOOL])
        with pytest.raises(openai.BadRequestError, match="shows no tools"):
            await responses.responses.create(**RESPONSE, tools=[FUNCTION])
        assert mesh.region.opened == []
