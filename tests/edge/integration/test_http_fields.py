"""What the official openai package asks for besides text, of a real edge: tools, schemas, log
probabilities, predictions, limits; and the same chats over HTTP/3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from services.edge.http3.limits import Http3Limits
from services.edge.identity import TenantConfig
from tests.edge.http.asking import events_of, objects_of
from tests.edge.http3.client import OtherClient, Response, h3_client, other_client
from tests.edge.integration.http_client import CHAT, KEY, official, plain, serving_http
from tests.edge.integration.test_tools import ARGUMENTS, REPLIES
from tests.models import tool_templates

REPLY = "a reply of some length"
H3_HEADERS = [
    (b"authorization", b"Bearer " + KEY.encode()),
    (b"content-type", b"application/json"),
]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}},
}


async def test_tools_are_called_and_answered(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        official(mesh) as client,
    ):
        answer = await client.chat.completions.create(**CHAT, tools=[TOOL])
        (choice,) = answer.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)

        calls: list[list[Any]] = []
        content = ""
        stream = await client.chat.completions.create(**CHAT, tools=[TOOL], stream=True)
        async for chunk in stream:
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for piece in delta.tool_calls or ():
                assert piece.function is not None
                if piece.id:
                    calls.append([piece.index, piece.function.name, ""])
                calls[piece.index][2] += piece.function.arguments or ""
        assert (content, calls) == ("I look.", [[0, "get_weather", ARGUMENTS]])

        said = choice.message.model_dump(exclude_none=True)
        messages = [
            *CHAT["messages"],
            said,
            {"role": "tool", "tool_call_id": call.id, "content": "x"},
        ]
        again = await client.chat.completions.create(model="small", messages=messages, tools=[TOOL])
        assert again.choices[0].message.tool_calls
        await client.chat.completions.create(**CHAT, tools=[TOOL], tool_choice="required")
        grammar = mesh.region.opened[-1].sampling.grammar
        assert "get_weather" in grammar.text
        await mesh.settled()


async def test_a_stream_of_calls_goes_on_after_its_connection_was_lost(tmp_path: Path) -> None:
    vocabulary = tool_templates.vocabulary_of(tool_templates.HERMES)
    async with (
        serving_http(vocabulary, tmp_path, REPLIES["hermes"]) as mesh,
        plain(mesh) as client,
    ):
        body = CHAT | {"tools": [TOOL], "stream": True}
        headers = {"idempotency-key": "k"}
        whole = await client.post("/v1/chat/completions", json=body, headers=headers)
        blocks = [it for it in events_of(whole.content) if it["data"] != "[DONE]"]
        assert len(blocks) > 4

        def arguments(objects: list[dict[str, Any]]) -> str:
            calls = [it["choices"][0]["delta"].get("tool_calls", ()) for it in objects]
            return "".join(it["function"].get("arguments", "") for some in calls for it in some)

        for at in range(len(blocks)):
            had = {**headers, "last-event-id": blocks[at]["id"]}
            rest = await client.post("/v1/chat/completions", json=body, headers=had)
            read = [json.loads(it["data"]) for it in blocks[: at + 1]]
            assert arguments([*read, *objects_of(rest.content)]) == ARGUMENTS
        assert len(mesh.region.opened) == 1, "nothing was computed twice"
        await mesh.settled()


async def test_schemas_and_predictions_reach_the_region(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        await client.chat.completions.create(
            **CHAT, response_format=SCHEMA, prediction={"type": "content", "content": REPLY}
        )
        opened = mesh.region.opened[-1]
        assert opened.sampling.grammar.text == '{"type":"object"}'
        assert opened.prediction.count == len(words.encode(REPLY))
        await mesh.settled()


async def test_log_probabilities_come_with_their_tokens(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        answer = await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=3)
        told = answer.choices[0].logprobs
        assert told is not None and told.content is not None
        assert "".join(it.token for it in told.content) == REPLY
        assert all(len(it.top_logprobs) == 3 for it in told.content)
        stream = await client.chat.completions.create(**CHAT, logprobs=True, stream=True)
        pieces = [chunk.choices[0].logprobs async for chunk in stream]
        streamed = [it for piece in pieces if piece for it in piece.content or ()]
        assert [(it.token, it.logprob) for it in streamed] == [
            (it.token, it.logprob) for it in told.content
        ]
        text = await client.completions.create(model="small", prompt="x", max_tokens=99, logprobs=2)
        lists = text.choices[0].logprobs
        assert lists is not None and lists.tokens is not None
        assert "".join(lists.tokens) == REPLY
        assert lists.text_offset is not None and lists.text_offset[:3] == [0, 1, 2]
        await mesh.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tenant_is_told_what_is_left_of_its_limits(
    words: Vocabulary, tmp_path: Path, stream: bool
) -> None:
    limited = TenantConfig("acme", requests_per_minute=2, output_tokens_per_minute=10_000)
    tenants = (limited, TenantConfig("bolt"))
    async with serving_http(words, tmp_path, REPLY, tenants=tenants) as mesh:
        async with plain(mesh) as client:
            body = CHAT | {"stream": stream}
            left = []
            for _ in range(2):
                answer = await client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200
                assert answer.headers["x-ratelimit-limit-requests"] == "2"
                assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
                left.append(answer.headers["x-ratelimit-remaining-requests"])
            assert left == ["1", "0"]
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 429
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert int(answer.headers["retry-after-ms"]) > 1000
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["type"] == "rate_limit_error"
        async with official(mesh) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(**CHAT)
        assert len(mesh.region.opened) == 2
        await mesh.settled()


async def test_a_chat_over_http3(words: Vocabulary, tmp_path: Path) -> None:
    """Of the same application, by two implementations of HTTP/3, as `Alt-Svc` tells them."""
    body = json.dumps(CHAT | {"stream": True}).encode()
    headers = [
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    asked = ("POST", "/v1/chat/completions", body)
    async with serving_http(words, tmp_path, REPLY, anonymous=False) as mesh:

        def check(response: Response) -> None:
            assert response.status == 200
            assert response.headers[b"content-type"].startswith(b"text/event-stream")
            deltas = [it["choices"][0]["delta"] for it in objects_of(response.body)]
            assert "".join(it.get("content", "") for it in deltas) == REPLY
            assert response.body.endswith(b"data: [DONE]\n\n")

        async with h3_client(mesh.ports.main, mesh.ca) as client:
            check(await client.ask(*asked, headers).whole())
            refused = await client.ask(*asked, headers[1:]).whole()
            assert refused.status == 401 and b"invalid_api_key" in refused.body
        other: OtherClient
        async with other_client(mesh.ports.main, mesh.ca) as other:
            check(await other.ask(*asked, headers).whole())
        assert len(mesh.region.opened) == 2
        await mesh.settled()


async def test_an_edge_that_stops_tells_those_that_wait_over_http3(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh:
        mesh.region.stop_after = 4
        async with h3_client(mesh.ports.main, mesh.ca) as client:
            streamed, waiting = (
                client.ask("POST", "/v1/chat/completions", json.dumps(body).encode(), H3_HEADERS)
                for body in (CHAT | {"stream": True}, CHAT)
            )
            await streamed.until(lambda: b'"content":"a' in streamed.body)
            await eventually(lambda: len(mesh.region.live) == 2)
            await mesh.edge.stop()
            assert b"shutting down" in (await streamed.whole()).body
            assert streamed.reset_code is None
            refused = await waiting.whole()
            assert refused.status == 503
            assert json.loads(refused.body)["error"]["code"] == "draining"
        await mesh.settled()


async def test_what_http3_refuses_by_itself_looks_like_all_refusals(
    words: Vocabulary, tmp_path: Path
) -> None:
    http3 = Http3Limits(body_timeout_s=0.3, max_requests_per_connection=1)
    async with (
        serving_http(words, tmp_path, REPLY, http3=http3) as mesh,
        h3_client(mesh.ports.main, mesh.ca) as client,
    ):
        named = [*H3_HEADERS, (b"x-request-id", b"mine")]
        slow = client.ask("POST", "/v1/chat/completions", b"{", named, ends=False)
        full = await client.ask("POST", "/v1/messages", b"{}", H3_HEADERS).whole()
        late = await slow.whole()
    assert (late.status, late.headers[b"x-request-id"]) == (408, b"mine")
    assert json.loads(late.body)["error"]["code"] == "slow_request"
    assert (full.status, full.headers[b"retry-after"]) == (503, b"1")
    said = json.loads(full.body)
    assert said["type"] == "error" and said["request_id"] == full.headers[b"request-id"].decode()


async def test_a_body_has_the_same_limit_over_http3(words: Vocabulary, tmp_path: Path) -> None:
    http = HttpConfig(port=0, max_body_bytes=1000)
    async with serving_http(words, tmp_path, REPLY, http=http) as mesh:
        long = json.dumps(CHAT | {"user": "x" * 300_000}).encode()
        stated = (b"content-length", b"%d" % len(long))
        async with h3_client(mesh.ports.main, mesh.ca) as client:
            for more in ([], [stated]):
                headers = [*H3_HEADERS, *more]
                answer = await client.ask("POST", "/v1/chat/completions", long, headers).whole()
                assert answer.status == 413
                assert "larger than 1000 bytes" in json.loads(answer.body)["error"]["message"]
                assert answer.headers[b"x-request-id"]
        assert mesh.region.opened == []
