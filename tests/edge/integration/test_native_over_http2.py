"""The native protocol over HTTP: the same chats, limits and losses as over QUIC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import h2.events
import h2.settings
import pytest

from outrider import errors
from outrider.client import Client
from outrider.client.dialling import Dialled
from outrider.client.http2 import Http2Connection
from outrider.client.known_edges import KnownEdges
from outrider.client.link import Link
from outrider.client.protocol import HTTP_FRAMES, HTTP_PATH, CloseCode
from outrider.client.recovery import ReconnectPolicy
from outrider.client.tickets import SessionTickets
from outrider.client.wire import CANCEL, Credential
from outrider.codec.frames import FrameDecoder
from outrider.errors import UnavailableError
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from services.edge.access.config import AccessConfig
from services.edge.http.config import HttpConfig
from tests.edge.http3.client import h3_client
from tests.edge.integration.http_client import plain, serving_http
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.trouble import (
    ASK,
    RawStream,
    bystander,
    chat_frame,
    raw_tcp,
    said,
    start,
    tcp_address,
)
from tests.typed_text import type_until

TLS = HttpConfig(port=0, tls="on")
pytestmark = pytest.mark.edge(http=TLS)


@pytest.fixture
async def connection(mesh: Running) -> AsyncIterator[Http2Connection]:
    """One over TCP, without what a client checks."""
    async with raw_tcp(mesh) as connection:
        yield connection


def link_over(connection: Http2Connection, mesh: Running, policy: ReconnectPolicy | None) -> Link:
    address = tcp_address(mesh)
    edges = KnownEdges([address])
    return Link(edges, address, Dialled(connection), SessionTickets(), policy)


@pytest.fixture
async def client(mesh: Running, connection: Http2Connection) -> AsyncIterator[Client]:
    """One whose connection goes over TCP."""
    link = link_over(connection, mesh, None)
    yield Client(link, Credential(client_secret=b"s" * 16))
    link.close()
    await mesh.settled()


async def test_a_chat_and_questions_are_served_as_over_quic(mesh: Running, client: Client) -> None:
    assert client.way == "TCP"
    assert await said(client.chat(ASK)) == REPLY
    assert (await client.describe()).name == "edge"
    assert len((await client.tokenize("hello")).ids) == len("hello")
    async with bystander(mesh, client):
        mesh.region.error = errors.NoReplicaError("none is ready", retry_delay_ms=70)
        with pytest.raises(errors.NoReplicaError, match="none is ready"):
            await said(client.chat(ASK))


async def test_who_says_nothing_of_itself_is_one_connection(mesh: Running) -> None:
    async with raw_tcp(mesh) as one, raw_tcp(mesh) as two:
        for connection in (one, one, two):
            await RawStream(connection, chat_frame()).ended.wait()
    first, second, third = (opening.cache_salt for opening in mesh.region.opened)
    assert first == second != third


async def test_a_cancel_ends_the_chat(mesh: Running, client: Client) -> None:
    mesh.region.stop_after = 4
    chat = await start(client)
    chat.cancel()
    assert (await chat.result()).finish_reason == "cancelled"
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])


async def test_a_chat_that_is_left_is_cancelled(mesh: Running, client: Client) -> None:
    mesh.region.stop_after = 4
    async with client.chat(ASK) as chat:
        await anext(chat)
    await eventually(lambda: mesh.region.cancelled == ["the client cancelled"])


async def test_typed_text_is_computed_until_the_prompt_comes(mesh: Running, client: Client) -> None:
    await type_until(lambda: len(mesh.region.opened) > 0, client.typing(), "Which trains? " * 20)
    assert await said(client.chat(ASK)) == REPLY
    await eventually(lambda: not mesh.http.frontend.streams)  # the prompt ended the typing


async def test_a_request_larger_than_all_windows_comes_whole(client: Client) -> None:
    with pytest.raises(errors.PromptTooLongError, match="your prompt resulted in"):
        await client.tokenize("hello " * 30_000)


@pytest.mark.parametrize("code", [CloseCode.DONE, CloseCode.COMING_BACK])
async def test_what_becomes_of_chats_when_the_connection_is_closed(
    code: CloseCode, mesh: Running, connection: Http2Connection
) -> None:
    mesh.region.stop_after = 4
    stream = RawStream(connection, chat_frame())
    await eventually(lambda: len(stream.frames) > 1)
    connection.shut(code)
    assert isinstance(stream.cut_off, UnavailableError)
    await eventually(lambda: not mesh.http.frontend.streams)
    assert mesh.edge.telemetry.num_chats == (code is CloseCode.COMING_BACK)
    await mesh.edge.stop()


class DeafConnection(Http2Connection):
    """Lets the edge send 100 bytes of a stream, and never more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        few = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100}
        self._h2.local_settings = h2.settings.Settings(client=True, initial_values=few)
        super().connection_made(transport)

    def _received(self, event: h2.events.DataReceived) -> None:
        event.flow_controlled_length = 0
        super()._received(event)


@pytest.mark.edge(reply="x" * 7000, max_unsent_bytes=2000)
async def test_a_client_that_does_not_read_loses_the_chat(
    monkeypatch: pytest.MonkeyPatch, mesh: Running
) -> None:
    mesh.region.block_tokens = 1
    monkeypatch.setattr("outrider.client.http2.Http2Connection", DeafConnection)
    async with raw_tcp(mesh) as connection:
        stream = RawStream(connection, chat_frame(max_tokens=8000))
        await eventually(lambda: mesh.region.cancelled == ["OVERLOADED"])
        (served,) = mesh.http.frontend.streams
        assert served._connection.transport.num_unacknowledged_bytes(0) < 100_000
        assert not stream.ended.is_set()


@pytest.mark.edge(max_chats_per_connection=2, max_streams_per_address=4)
async def test_a_connection_and_an_address_have_as_many_streams_as_over_quic(
    mesh: Running, connection: Http2Connection
) -> None:
    mesh.region.stop_after = 4
    running = [RawStream(connection, chat_frame()) for _ in range(2)]
    await eventually(lambda: all(len(it.frames) > 1 for it in running))
    error = await RawStream(connection, chat_frame()).error()
    assert error.reason == "OVERLOADED"
    async with raw_tcp(mesh) as other:
        more = [RawStream(other, chat_frame()) for _ in range(2)]
        await eventually(lambda: all(len(it.frames) > 1 for it in more))
        refused = RawStream(other, chat_frame())
        await asyncio.wait_for(refused.ended.wait(), 30)
        assert isinstance(refused.cut_off, errors.OverloadedError)
    for stream in running:
        connection.send(stream.stream_id, CANCEL)
    for stream in running:
        await asyncio.wait_for(stream.ended.wait(), 30)


async def test_an_edge_that_stops_ends_chats_in_words(
    mesh: Running, connection: Http2Connection
) -> None:
    mesh.region.stop_after = 4
    stream = RawStream(connection, chat_frame())
    await eventually(lambda: len(stream.frames) > 1)
    await mesh.edge.stop()
    assert (await stream.error()).reason == "DRAINING"


async def test_a_page_has_its_chats_over_any_version_of_http(
    words: Vocabulary, tmp_path: Path
) -> None:
    frames = {"content-type": HTTP_FRAMES}
    async with serving_http(words, tmp_path) as mesh:
        bodies = []
        for is_new in (False, True):
            async with plain(mesh, http1=not is_new, http2=is_new) as caller:
                answer = await caller.post(HTTP_PATH, content=chat_frame(), headers=frames)
                assert answer.status_code == 200 and answer.headers["content-type"] == HTTP_FRAMES
                bodies.append(answer.content)
                assert (await caller.post(HTTP_PATH, json={})).status_code == 415
        async with h3_client(mesh.ports.main, mesh.ca) as over_http3:
            fields = [(b"content-type", HTTP_FRAMES.encode())]
            found = await over_http3.ask("POST", HTTP_PATH, chat_frame(), fields).whole()
            assert found.status == 200
            bodies.append(found.body)
        for body in bodies:
            told = [edge_pb2.EdgeFrame.FromString(it) for it in FrameDecoder().feed(body)]
            assert "".join(it.commit.text for it in told) == REPLY
            assert told[-1].WhichOneof("kind") == "done"


async def test_a_page_of_another_name_has_no_streams_where_nobody_needs_a_key(
    words: Vocabulary, tmp_path: Path
) -> None:
    """The name leads to this machine: DNS rebinding. Other requests need a key here."""
    strict = AccessConfig(http_anonymous=False)
    async with serving_http(words, tmp_path, access=strict) as mesh, plain(mesh) as caller:
        for host, status in (("evil.example", 421), ("localhost", 200)):
            headers = {"content-type": HTTP_FRAMES, "host": host}
            answer = await caller.post(HTTP_PATH, content=chat_frame(), headers=headers)
            assert answer.status_code == status


async def test_garbage_in_a_body_is_an_error_of_its_stream(
    mesh: Running, client: Client, connection: Http2Connection
) -> None:
    async with bystander(mesh, client):
        error = await RawStream(connection, b"\x05garbage").error()
        assert error.reason == "MALFORMED_FRAME"


@pytest.mark.edge(http=HttpConfig(port=0, tls="on", max_requests_per_connection=3))
async def test_a_connection_that_is_used_up_is_replaced(mesh: Running) -> None:
    policy = ReconnectPolicy()
    async with raw_tcp(mesh) as connection:
        link = link_over(connection, mesh, policy)
        client = Client(link, Credential(client_secret=b"s" * 16))
        assert [await said(client.chat(ASK)) for _ in range(5)] == [REPLY] * 5
        assert link.connection is not connection
        link.close()
