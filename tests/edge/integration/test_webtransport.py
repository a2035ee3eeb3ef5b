"""The native protocol in WebTransport sessions: the same chats, limits and losses as over QUIC, and
which pages may open a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outrider.client.protocol import HTTP_FRAMES, HTTP_PATH, CloseCode
from outrider.client.wire import CANCEL, DESCRIBE
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.v1 import edge_pb2
from services.edge.http.config import HttpConfig
from services.edge.http3.exchange import H3Code
from services.edge.http3.limits import Http3Limits
from services.edge.http3.webtransport import DRAIN, CapsuleReader, Close, http_code
from tests.edge.integration.http_client import plain, serving_http, url
from tests.edge.integration.running import REPLY, Running
from tests.edge.integration.sessions import SessionClient, session_client
from tests.edge.integration.trouble import chat_frame

PAGE = "https://page.example"
HTTP = HttpConfig(port=0, allowed_origins=(PAGE,))
SECRET = b"s" * 16


def asked(*, resumes: str = "", upto: int = 0, num_chars: int = 0) -> bytes:
    """A request of a client that is known again."""
    chat = edge_pb2.ChatRequest(idempotency_key="once")
    chat.messages.add(role="user", content="hello")
    chat.credential.client_secret = SECRET
    if resumes:
        chat.resume.resume_token = resumes
        chat.resume.upto, chat.resume.num_chars = upto, num_chars
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


@pytest.fixture
async def mesh(words: Vocabulary, tmp_path: Path) -> AsyncIterator[Running]:
    http3 = Http3Limits(close_timeout_s=0.5)
    settings: dict[str, Any] = {"http": HTTP, "http3": http3, "max_chats_per_connection": 3}
    async with serving_http(words, tmp_path, **settings) as mesh:
        yield mesh


@pytest.fixture
async def client(mesh: Running) -> AsyncIterator[SessionClient]:
    async with session_client(mesh.ports.main, mesh.ca) as client:
        yield client


async def test_chats_and_questions_are_served_as_over_quic(
    mesh: Running, client: SessionClient
) -> None:
    session = await client.session(origin=PAGE)
    assert session.status == 200
    for _ in range(5):
        stream = await client.stream(session, chat_frame()).whole()
        assert stream.text == REPLY and stream.frames[-1].WhichOneof("kind") == "done"
        assert stream.stop_code == http_code(CloseCode.DONE)
    described = await client.stream(session, DESCRIBE, ends=True).whole()
    assert described.frames[0].description.edge == "edge"
    response = await client.get("/v1/models")
    assert response.status == 200, "requests share the connection"


@pytest.mark.parametrize(
    ("origin", "authority", "status"),
    [
        (PAGE, "localhost", 200),
        ("", "localhost", 200),
        ("https://other.example", "localhost", 403),
        ("null", "localhost", 403),
        ("http://localhost:1", "localhost:4433", 403),
        (PAGE, "evil.example", 421),
    ],
)
async def test_pages_of_origins_that_are_allowed_have_sessions(
    client: SessionClient, origin: str, authority: str, status: int
) -> None:
    assert (await client.session(origin=origin, authority=authority)).status == status


async def test_the_edges_own_pages_have_sessions(mesh: Running, client: SessionClient) -> None:
    own = url(mesh).replace("127.0.0.1", "localhost")
    assert (await client.session(origin=own, authority="localhost:4433")).status == 200
    async with session_client(mesh.ports.main, mesh.ca) as other:
        assert (await other.session(origin=own, authority="127.0.0.1:4433")).status == 403
    async with session_client(mesh.ports.main, mesh.ca) as other:
        assert (await other.session(path="/elsewhere")).status == 404


async def test_pages_are_told_where_sessions_are_and_how_to_know_the_edge(mesh: Running) -> None:
    async with plain(mesh) as caller:
        answer = await caller.get("/ui/transport.json", headers={"origin": PAGE})
    told = answer.json()
    place = told["webtransport"]
    port = url(mesh).rpartition(":")[2]
    assert place["url"] == f"https://127.0.0.1:{mesh.ports.main}/outrider/v1/webtransport"
    assert told["stream"] == HTTP_PATH and port != str(mesh.ports.main)
    (known,) = place["certificate_hashes"]
    assert known["algorithm"] == "sha-256" and len(bytes.fromhex(known["value"])) == 32
    assert datetime.fromisoformat(known["not_after"]) > datetime.now(UTC)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["cache-control"] == "no-store"


async def test_an_edge_without_sessions_says_so(words: Vocabulary, tmp_path: Path) -> None:
    http3 = Http3Limits(webtransport=False)
    async with serving_http(words, tmp_path, http3=http3) as mesh, plain(mesh) as caller:
        assert (await caller.get("/ui/transport.json")).json()["webtransport"] is None
        async with session_client(mesh.ports.main, mesh.ca) as client:
            assert (await client.session()).status == 501


async def test_a_session_has_as_many_chats_as_a_connection(
    mesh: Running, client: SessionClient
) -> None:
    mesh.region.stop_after = 4
    session = await client.session()
    running = [client.stream(session, chat_frame()) for _ in range(3)]
    await eventually(lambda: all(len(it.frames) > 1 for it in running))
    assert (await client.stream(session, chat_frame()).error()).reason == "OVERLOADED"
    for stream in running:
        client.send(stream, CANCEL)
        assert (await stream.whole()).frames[-1].done.finish_reason == 3


async def test_a_chat_goes_on_by_fetch_when_its_session_is_lost(mesh: Running) -> None:
    mesh.region.hold(2)
    async with session_client(mesh.ports.main, mesh.ca) as client:
        session = await client.session()
        stream = client.stream(session, asked())
        await eventually(lambda: bool(stream.text))
    token = stream.frames[0].accepted.resume_token
    upto = stream.frames[-1].commit.upto
    mesh.region.gate.set()
    async with plain(mesh) as caller:
        again = asked(resumes=token, upto=upto, num_chars=len(stream.text))
        headers = {"content-type": HTTP_FRAMES}
        answer = await caller.post(HTTP_PATH, content=again, headers=headers)
    rest = [edge_pb2.EdgeFrame.FromString(it) for it in FrameDecoder().feed(answer.content)]
    assert stream.text + "".join(it.commit.text for it in rest) == REPLY
    assert len(mesh.region.opened) == 1, "it ran once"


@pytest.mark.parametrize(
    ("code", "goes_on"), [(CloseCode.DONE, False), (CloseCode.COMING_BACK, True)]
)
async def test_whoever_closes_a_session_gives_its_chats_up_or_comes_back(
    mesh: Running, client: SessionClient, code: CloseCode, goes_on: bool
) -> None:
    mesh.region.stop_after = 4
    session = await client.session()
    stream = client.stream(session, asked())
    await eventually(lambda: len(stream.frames) > 1)
    client.say(session, Close(code).capsule(), ends=True)
    assert (await stream.whole()).reset_code == H3Code.WEBTRANSPORT_SESSION_GONE.value
    await eventually(lambda: session.ended.is_set())
    if goes_on:
        assert mesh.region.cancelled == []
    else:
        await eventually(lambda: mesh.region.cancelled == ["the client is gone"])
    again = await client.session()
    assert again.status == 200, "the connection is of use still"
    late = client.stream(session, chat_frame())
    assert (await late.whole()).reset_code == H3Code.WEBTRANSPORT_STREAM_REJECTED.value
    await mesh.edge.stop()  # or it would wait for the one who comes back


async def test_an_edge_that_stops_ends_chats_in_words_and_sessions_by_a_code(
    mesh: Running, client: SessionClient
) -> None:
    mesh.region.stop_after = 4
    session = await client.session()
    stream = client.stream(session, chat_frame())
    await eventually(lambda: len(stream.frames) > 1)
    await mesh.edge.stop()
    assert (await stream.error()).reason == "DRAINING"
    assert session.body.startswith(DRAIN)
    closed = CapsuleReader().feed(session.body)
    assert closed is not None and closed.code == CloseCode.SHUTTING_DOWN


async def test_bad_bytes_end_their_stream_only(mesh: Running, client: SessionClient) -> None:
    session = await client.session()
    for garbage in (b"\x05hello", b"\x00", encode_frame(b"\x12\x00")):
        assert (await client.stream(session, garbage).error()).reason == "MALFORMED_FRAME"
    cut = client.stream(session, chat_frame()[:-1], ends=True)
    assert (await cut.error()).reason == "MALFORMED_FRAME"
    assert (await client.stream(session, chat_frame()).whole()).text == REPLY


async def test_datagrams_and_floods_of_sessions_and_streams_leave_nothing(
    mesh: Running, client: SessionClient
) -> None:
    session = await client.session()
    for number in range(40):
        client._quic.send_datagram_frame(bytes(100))
        refused = await client.session()
        assert refused.reset_code == H3Code.REQUEST_REJECTED.value
        stream = client.stream(session, b"")
        client._quic.reset_stream(stream.stream_id, number)
        client.transmit()
    assert (await client.stream(session, chat_frame()).whole()).text == REPLY
    (connection,) = mesh.edge.listener.connections
    client.say(session, b"", ends=True)
    await eventually(lambda: connection.budget.num_bytes == 0)
