"""HTTP chats are sessions like all others: cancelled, resumed, bounded, drained, and freed."""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from httpx2 import AsyncClient
from starlette.types import ASGIApp, Send

from outrider.errors import ConfigError, OverloadedError
from outrider.testing import eventually
from services.edge.chat.chat import Chat
from services.edge.chat.resumption_table import ResumeLimits
from services.edge.http import exchange
from services.edge.http.api import ApiRequest
from services.edge.http.config import HttpConfig
from services.edge.http.exchange import Exchange
from services.edge.http.openai_reply import OpenAiWriter
from services.edge.http.stream import RunningReply
from services.edge.limits.quotas import Count
from tests.edge.http.asking import objects_of
from tests.edge.integration.http_client import (
    CHAT,
    RawRequest,
)
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import uncollected
from tests.mesh import running_edge

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


def text_of(stream: bytes) -> str:
    deltas = [it["choices"][0]["delta"] for it in objects_of(stream) if it.get("choices")]
    return "".join(it.get("content", "") for it in deltas)


MAX_UNSENT_BYTES = 192 << 10
LONG_REPLY = REPLY * 24


@pytest.mark.edge(reply=LONG_REPLY, http=HttpConfig(port=0, max_unsent_bytes=MAX_UNSENT_BYTES))
async def test_a_chat_that_its_client_was_away_from_for_long_is_caught_up_with(
    mesh: Running, caller: AsyncClient
) -> None:
    """More came meanwhile than a client may leave unread. While it runs, and once it has ended."""
    mesh.region.hold(6)
    headers = {"Idempotency-Key": "k"}
    body: dict[str, Any] = {"stream": True, "logprobs": True, "top_logprobs": 20}
    first = await RawRequest.chat(mesh, headers=headers, **body)
    await first.until(b'"content":"epl"')
    first.close()
    await eventually(lambda: mesh.sample("outrider_edge_detached_chats") == 1)
    mesh.region.hold_at = len(LONG_REPLY) - 100
    mesh.region.gate.set()
    mesh.region.gate.clear()
    (session,) = mesh.region.live.values()
    await eventually(lambda: session.committed >= mesh.region.hold_at)
    for _ in range(2):
        async with caller.stream(
            "POST", "/v1/chat/completions", json=CHAT | body, headers=headers
        ) as again:
            got = b""
            async for data in again.aiter_bytes():
                got += data
                mesh.region.gate.set()
        assert text_of(got) == LONG_REPLY
        assert len(got) > 2 * MAX_UNSENT_BYTES
    assert len(mesh.region.opened) == 1


async def test_the_same_key_joins_the_running_chat_and_the_older_request_ends(
    mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.hold(6)

    def ask() -> asyncio.Task[Any]:
        return asyncio.create_task(
            caller.post("/v1/chat/completions", json=CHAT, headers={"Idempotency-Key": "k"})
        )

    older = ask()
    await eventually(lambda: len(mesh.region.live) == 1)
    newer = ask()
    refused = await older
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    mesh.region.gate.set()
    answer = await newer
    assert answer.json()["choices"][0]["message"]["content"] == REPLY
    assert len(mesh.region.opened) == 1


@pytest.mark.edge(resumption=ResumeLimits(window_s=0.2))
async def test_a_chat_that_nobody_comes_back_to_is_cancelled(mesh: Running) -> None:
    mesh.region.stop_after = 4
    request = await RawRequest.chat(mesh, headers={"Idempotency-Key": "k"})
    await eventually(lambda: len(mesh.region.live) == 1)
    request.close()
    await eventually(lambda: mesh.region.cancelled == ["the client is gone"])


@pytest.mark.edge(max_chats_per_address=2)
async def test_chats_count_against_the_limits_of_both_doors(
    mesh: Running, caller: AsyncClient
) -> None:
    mesh.region.stop_after = 0
    both = [await RawRequest.chat(mesh) for _ in range(2)]
    await eventually(lambda: len(mesh.region.live) == 2)
    refused = await caller.post("/v1/chat/completions", json=CHAT)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    for request in both:
        request.close()
    await mesh.settled()
    shared = mesh.edge.listener.shared
    assert shared.quotas.held("127.0.0.1/32", Count.CHATS) == 0


@pytest.mark.edge(http=HttpConfig(port=0, max_connections=2, max_waiting_connections=0))
async def test_connections_count_and_are_bounded(mesh: Running) -> None:
    kept = [await RawRequest.connected(mesh) for _ in range(2)]
    await eventually(lambda: mesh.http.num_connections == 2)
    refused = await RawRequest.connected(mesh)
    assert (await refused.until(b"\r\n")).startswith(b"HTTP/1.1 503 ")
    for request in kept:
        request.close()
    await eventually(lambda: not mesh.http.num_connections)
    shared = mesh.edge.listener.shared
    assert shared.quotas.held("127.0.0.1/32", Count.CONNECTIONS) == 0


@pytest.mark.edge(http=HttpConfig(port=0, max_unsent_bytes=1))
async def test_a_client_that_does_not_read_loses_its_chat(mesh: Running) -> None:
    request = await RawRequest.chat(mesh, stream=True)
    answer = await request.until(b"[DONE]")
    assert b"does not read" in answer
    request.close()


async def test_an_edge_that_stops_tells_those_that_wait(mesh: Running) -> None:
    mesh.region.stop_after = 4
    streamed = await RawRequest.chat(mesh, stream=True)
    await streamed.until(b'"content":"a')
    waiting = await RawRequest.chat(mesh)
    await eventually(lambda: len(mesh.region.live) == 2)
    await mesh.edge.stop()
    assert b"shutting down" in await streamed.rest()
    answer = await waiting.rest()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "draining"


@pytest.mark.edge(drain_s=30.0)
async def test_replies_under_way_may_end_while_an_edge_drains(mesh: Running) -> None:
    mesh.region.hold(6)
    request = await RawRequest.chat(mesh, stream=True)
    await request.until(b'"content":"a')
    stopping = asyncio.create_task(mesh.edge.stop())
    await eventually(lambda: mesh.edge.listener.is_draining)
    mesh.region.gate.set()
    assert b"[DONE]" in await request.rest()
    await stopping


async def test_what_a_chat_held_is_freed_without_the_collector(
    mesh: Running, caller: AsyncClient
) -> None:
    with uncollected(Chat, Exchange, RunningReply, OpenAiWriter) as alive:
        for body in (CHAT, CHAT | {"stream": True}, {}, CHAT | {"n": 3, "stop": "of"}):
            await caller.post("/v1/chat/completions", json=body)
        mesh.region.error = OverloadedError("full")
        for body in (CHAT, CHAT | {"stream": True}):
            await caller.post("/v1/chat/completions", json=body)
        mesh.region.error = None
        mesh.region.stop_after = 4
        request = await RawRequest.chat(mesh, stream=True)
        await request.until(b'"content":"a')
        request.close()
        await mesh.settled()
        await eventually(lambda: not alive)


async def test_the_body_of_a_request_is_not_kept_while_its_reply_is_under_way(
    mesh: Running,
) -> None:
    mesh.region.stop_after = 4
    request = await RawRequest.chat(mesh)
    await eventually(lambda: len(mesh.region.live) == 1)
    assert not [it for it in gc.get_objects() if type(it) is ApiRequest]
    request.close()


async def test_a_port_that_is_taken_is_told(mesh: Running) -> None:
    config = replace(mesh.edge._config, http=HttpConfig(port=mesh.ports.http))
    with pytest.raises(ConfigError, match=rf"{mesh.ports.http} for HTTP .* http.port"):
        async with running_edge(config, mesh.load):
            raise AssertionError("it started")


@pytest.mark.edge(
    http=HttpConfig(port=0, max_requests_per_connection=2, max_streams_per_connection=3)
)
async def test_a_connection_serves_only_so_many_requests(mesh: Running) -> None:
    request = await RawRequest.connected(mesh)
    for _ in range(5):
        request.send("GET /openapi.json HTTP/1.1", {"Host": "localhost"})
    answers = await request.rest()
    assert 1 <= answers.count(b"HTTP/1.1 200") <= 3
    # HTTP/2 tells how many may be under way at a time.
    wire = H2Connection()
    wire.initiate_connection()
    second = await RawRequest.connected(mesh)
    second.writer.write(wire.data_to_send())
    events = wire.receive_data(await second.some())
    (settings,) = [it for it in events if isinstance(it, RemoteSettingsChanged)]
    limit = settings.changed_settings[SettingCodes.MAX_CONCURRENT_STREAMS]
    assert limit.new_value == 3


@pytest.mark.edge(http=HttpConfig(port=0, send_timeout_s=0.5))
async def test_a_stream_that_is_not_read_costs_its_connection_nothing(mesh: Running) -> None:
    wire = H2Connection()
    wire.initiate_connection()
    wire.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    connection = await RawRequest.connected(mesh)
    seen: list[Event] = []

    async def until(kind: type[Event]) -> Event:
        while not any(isinstance(it, kind) for it in seen):
            connection.writer.write(wire.data_to_send())
            seen.extend(wire.receive_data(await connection.some()))
        return next(it for it in seen if isinstance(it, kind))

    def ask(stream: int, path: str) -> None:
        fields = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "localhost"}
        wire.send_headers(stream, list(fields.items()), end_stream=True)

    ask(1, "/openapi.json")
    reset = await until(StreamReset)
    assert isinstance(reset, StreamReset)
    assert (reset.stream_id, reset.error_code) == (1, ErrorCodes.INTERNAL_ERROR)
    seen.clear()
    ask(3, "/openapi.json")
    wire.increment_flow_control_window(1 << 20)
    wire.increment_flow_control_window(1 << 20, 3)
    await until(StreamEnded)
    assert not any(isinstance(it, ConnectionTerminated | StreamReset) for it in seen)
    data = b"".join(it.data for it in seen if isinstance(it, DataReceived))
    assert json.loads(data)["openapi"]


@pytest.mark.edge(http=HttpConfig(port=0, send_timeout_s=0.05))
async def test_a_request_whose_answer_cannot_be_sent_is_aborted(mesh: Running) -> None:
    closed = asyncio.Event()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/openapi.json",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "extensions": {"outrider-connection": {"abort": closed.set}},
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        await asyncio.Event().wait()  # as a server whose client's window is full

    await mesh.http.app(scope, receive, send)
    assert closed.is_set()


async def asked(app: ASGIApp, method: str, send: Send) -> None:
    """Ask for the largest answer that there is."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    client = ("127.0.0.1", 1)
    scope = {"type": "http", "method": method, "path": "/openapi.json", "headers": []}
    await app({**scope, "client": client}, receive, send)


@pytest.mark.edge(http=HttpConfig(port=0, send_timeout_s=1.0))
async def test_a_client_that_reads_slowly_has_time_for_each_piece_of_a_large_answer(
    monkeypatch: pytest.MonkeyPatch, mesh: Running, caller: AsyncClient
) -> None:
    whole = (await caller.get("/openapi.json")).content
    monkeypatch.setattr(exchange, "_PIECE_BYTES", len(whole) // 20)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(2 * len(message.get("body", b"")) / len(whole))
        sent.append(message)

    await asked(mesh.http.app, "GET", send)
    bodies = sent[1:]
    assert b"".join(it["body"] for it in bodies) == whole
    assert all(it["body"] for it in bodies)
    assert [it["more_body"] for it in bodies] == [True] * (len(bodies) - 1) + [False]
    assert 20 <= len(bodies) <= 21


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_fits_one_piece_is_sent_at_once(
    method: str, monkeypatch: pytest.MonkeyPatch, mesh: Running, caller: AsyncClient
) -> None:
    whole = (await caller.get("/openapi.json")).content
    monkeypatch.setattr(exchange, "_PIECE_BYTES", len(whole) if method == "GET" else 1)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await asked(mesh.http.app, method, send)
    head, body = sent
    assert (b"content-length", b"%d" % len(whole)) in head["headers"]
    assert body["body"] == (whole if method == "GET" else b"")
    assert body["more_body"] is False
