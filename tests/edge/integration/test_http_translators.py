"""The official anthropic and openai packages talk to a real edge by Messages and Responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic

from outrider.errors import OverloadedError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from tests.edge.http.asking import events_of
from tests.edge.http.specifications import anthropic_faults, event_faults, responses_faults
from tests.edge.integration.http_client import (
    KEY,
    RawRequest,
    official,
    plain,
    serving_http,
    url,
)
from tests.edge.integration.running import Running

REPLY = "a reply of some length"
USER = {"role": "user", "content": "hello"}
MESSAGE: dict[str, Any] = {"model": "small", "max_tokens": 99, "messages": [USER]}
RESPONSE: dict[str, Any] = {"model": "small", "input": "hello"}
BOTH = (("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE))
VERSION = {"anthropic-version": "2023-06-01"}


@asynccontextmanager
async def anthropics(mesh: Running, key: str = KEY) -> AsyncIterator[AsyncAnthropic]:
    """The official client, which tries nothing twice."""
    async with AsyncAnthropic(base_url=url(mesh), api_key=key, max_retries=0) as client:
        yield client


async def test_a_message_that_is_not_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, anthropics(mesh) as client:
        message = await client.messages.create(**MESSAGE, system="be kind")
        (block,) = message.content
        assert block.type == "text" and block.text == REPLY
        assert (message.stop_reason, message.model) == ("end_turn", "small")
        assert message.usage.output_tokens == len(REPLY) + 1
        count = await client.messages.count_tokens(
            model="small", messages=MESSAGE["messages"], system="be kind"
        )
        assert count.input_tokens > len("hello be kind")
        assert len(mesh.region.opened) == 1, "to count tokens opens nothing"
        (opened,) = mesh.region.opened
        assert opened.sampling.max_tokens == 99
        await mesh.settled()


async def test_a_message_that_is_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, anthropics(mesh) as client:
        count = await client.messages.count_tokens(model="small", messages=MESSAGE["messages"])
        async with client.messages.stream(**MESSAGE) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_message()
        assert events[0].type == "message_start"
        assert events[0].message.usage.input_tokens == count.input_tokens
        deltas = [it.delta for it in events if it.type == "content_block_delta"]
        texts = [it.text for it in deltas if it.type == "text_delta"]
        assert "".join(texts) == REPLY and len(texts) > 1
        (block,) = final.content
        assert block.type == "text" and block.text == REPLY
        assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", len(REPLY) + 1)
        await mesh.settled()


async def test_the_first_tokens_of_both_come_before_the_others_are_made(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with (
        serving_http(words, tmp_path, REPLY) as mesh,
        anthropics(mesh) as anthropic_client,
        official(mesh) as openai_client,
    ):
        mesh.region.hold_at = 3
        mesh.region.gate.clear()
        text = ""
        async with anthropic_client.messages.stream(**MESSAGE) as stream:
            async for piece in stream.text_stream:
                text += piece
                if len(text) >= 3 and not mesh.region.gate.is_set():
                    assert text != REPLY
                    mesh.region.gate.set()
        assert text == REPLY
        mesh.region.gate.clear()
        text = ""
        async with openai_client.responses.stream(**RESPONSE) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                if len(text) >= 3 and not mesh.region.gate.is_set():
                    assert text != REPLY
                    mesh.region.gate.set()
        assert text == REPLY


async def test_the_stop_sequence_that_ended_a_message_is_named(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, anthropics(mesh) as client:
        mesh.region.reply = tuple(words.encode("a reply of"))  # a replica ends there
        message = await client.messages.create(**MESSAGE, stop_sequences=["nothing", "of"])
        (block,) = message.content
        assert block.type == "text" and block.text == "a reply "
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "of")
        async with client.messages.stream(**MESSAGE, stop_sequences=["of"]) as stream:
            final = await stream.get_final_message()
        assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "of")
        await mesh.settled()


async def test_errors_of_messages_are_those_of_that_api(words: Vocabulary, tmp_path: Path) -> None:
    http = HttpConfig(port=0, max_body_bytes=1000)
    async with serving_http(words, tmp_path, http=http) as mesh, anthropics(mesh) as client:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**MESSAGE | {"model": "nope"})
        assert unknown.value.type == "not_found_error"
        assert unknown.value.request_id
        with pytest.raises(anthropic.BadRequestError, match="shows no tools"):
            await client.messages.create(**MESSAGE, tools=[{"name": "f", "input_schema": {}}])
        with pytest.raises(anthropic.RequestTooLargeError):
            await client.messages.create(**MESSAGE, system="x" * 2000)
        mesh.region.error = OverloadedError("the queue is full", retry_delay_ms=1500)
        with pytest.raises(anthropic.RateLimitError) as busy:
            await client.messages.create(**MESSAGE)
        assert busy.value.response.headers["retry-after"] == "2"
        with pytest.raises(anthropic.RateLimitError):
            async with client.messages.stream(**MESSAGE) as stream:
                await stream.until_done()
        async with anthropics(mesh, "wrong") as stranger:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await stranger.messages.create(**MESSAGE)
            assert refused.value.type == "authentication_error"
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.count_tokens(model="small", messages=MESSAGE["messages"])
        async with plain(mesh) as raw:
            for answer in (
                await raw.get("/v1/messages"),
                await raw.post("/v1/messages", content=b"{}"),
                await raw.post("/v1/messages/count_tokens", json={}),
            ):
                assert anthropic_faults(answer.json(), "ErrorResponse") == []
                assert answer.json()["request_id"] == answer.headers["request-id"]
        await mesh.settled()


@pytest.mark.parametrize(("path", "asked"), BOTH)
async def test_a_failure_in_the_middle_ends_a_stream_with_an_error(
    words: Vocabulary, tmp_path: Path, path: str, asked: dict[str, Any]
) -> None:
    async with serving_http(words, tmp_path, REPLY, reopen_s=0.2) as mesh, plain(mesh) as client:
        mesh.region.stop_after = 4
        text, is_cut = b"", False
        async with client.stream("POST", path, json=asked | {"stream": True}) as answer:
            async for piece in answer.aiter_bytes():
                text += piece
                if not is_cut and _text_of(text):
                    is_cut = True
                    await mesh.edge.upstream.stop()
        last = json.loads(events_of(text)[-1]["data"])
        assert last["type"] == ("error" if path == "/v1/messages" else "response.failed")
        await mesh.settled()


async def test_a_response_that_is_not_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        response = await client.responses.create(
            **RESPONSE, instructions="be kind", max_output_tokens=99, store=True
        )
        assert response.output_text == REPLY
        assert (response.status, response.model) == ("completed", "small")
        assert response.usage is not None
        assert response.usage.output_tokens == len(REPLY) + 1
        count = await client.responses.input_tokens.count(**RESPONSE, instructions="be kind")
        assert count.input_tokens > len("hello be kind")
        assert len(mesh.region.opened) == 1
        # The conversation goes on with what was said, sent again.
        items = [USER, *[it.to_dict() for it in response.output], USER]
        again = await client.responses.create(model="small", input=items)
        assert again.status == "completed"
        await mesh.settled()


async def test_a_response_that_is_streamed(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        async with client.responses.stream(**RESPONSE) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert events[0].type == "response.created"
        assert [it.sequence_number for it in events] == list(range(len(events)))
        assert final.output_text == REPLY
        assert final.usage is not None and final.usage.output_tokens == len(REPLY) + 1
        await mesh.settled()


async def test_what_is_sent_is_as_the_specifications_have_it(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        message = await client.post("/v1/messages", json=MESSAGE, headers=VERSION)
        assert anthropic_faults(message.json(), "Message") == []
        response = await client.post("/v1/responses", json=RESPONSE)
        assert responses_faults(response.json(), "ResponseResource") == []
        stream = await client.post("/v1/responses", json=RESPONSE | {"stream": True})
        events = [json.loads(it["data"]) for it in events_of(stream.content)]
        assert [fault for it in events for fault in event_faults(it)] == []
        await mesh.settled()


async def test_no_response_is_stored(words: Vocabulary, tmp_path: Path) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, official(mesh) as client:
        for call in (
            client.responses.retrieve("resp_1"),
            client.responses.delete("resp_1"),
            client.responses.cancel("resp_1"),
            client.responses.compact(model="small", input="hello"),
        ):
            with pytest.raises(openai.NotFoundError, match="no response is stored here"):
                await call
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**RESPONSE, previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        assert mesh.region.opened == []


@pytest.mark.parametrize(("path", "asked"), BOTH)
async def test_a_stream_with_a_key_goes_on_where_it_was_cut(
    words: Vocabulary, tmp_path: Path, path: str, asked: dict[str, Any]
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh, plain(mesh) as client:
        mesh.region.hold_at = 6
        mesh.region.gate.clear()
        headers = {"Idempotency-Key": "k"}
        body = asked | {"stream": True}
        had = b""
        async with client.stream("POST", path, json=body, headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                had += piece
                if _text_of(had) == REPLY[:6]:
                    break
        await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
        mesh.region.gate.set()
        last = [it["id"] for it in events_of(had) if "id" in it][-1]
        rest = await client.post(path, json=body, headers=headers | {"Last-Event-ID": last})
        assert _text_of(had) + _text_of(rest.content) == REPLY
        assert len(mesh.region.opened) == 1
        reused = await client.post(path, json=body | {"temperature": 0}, headers=headers)
        assert reused.status_code == 422


def _text_of(stream: bytes) -> str:
    whole = stream[: stream.rfind(b"\n\n") + 2]
    found = [json.loads(it["data"]).get("delta") for it in events_of(whole)] if whole else []
    return "".join(it.get("text", "") if isinstance(it, dict) else it or "" for it in found)


@pytest.mark.parametrize(("path", "asked"), BOTH)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_chat(
    words: Vocabulary, tmp_path: Path, path: str, asked: dict[str, Any], stream: bool
) -> None:
    async with serving_http(words, tmp_path, REPLY) as mesh:
        mesh.region.stop_after = 4
        request = await RawRequest.connected(mesh)
        body = json.dumps(asked | {"stream": stream}).encode()
        request.send(
            f"POST {path} HTTP/1.1",
            {
                "Host": "edge",
                "x-api-key": KEY,
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            },
            body,
        )
        await eventually(lambda: len(mesh.region.live) == 1)
        request.close()
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
        await mesh.settled()


async def test_a_silent_stream_of_messages_is_kept_alive_by_pings(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, comment_s=0.05)
    async with serving_http(words, tmp_path, REPLY, http=http) as mesh, plain(mesh) as client:
        mesh.region.hold_at = 3
        mesh.region.gate.clear()
        text = b""
        body = MESSAGE | {"stream": True}
        async with client.stream("POST", "/v1/messages", json=body) as answer:
            async for piece in answer.aiter_bytes():
                text += piece
                if b"event: ping" in text:
                    mesh.region.gate.set()
        assert events_of(text)[-1]["event"] == "message_stop"
        assert _text_of(text) == REPLY
