"""Connections that take no more requests: those that have served as many as they may, those of an
edge that stops, and those whose clients are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http import listener
from services.edge.http.config import HttpConfig
from tests.edge.integration.http_client import RawRequest, plain, serving_http
from tests.edge.integration.running import Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


_TIMEOUT_S = 30
_HELD = "/held"
_LEFT = "/left"


@dataclass
class HeldApp:
    """The edge's, but that requests for one path wait, and those for another are not answered until
    their clients cancel them. `body` is what the former are answered."""

    app: ASGIApp
    body: bytes = b"ok"
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    num_begun: int = 0
    num_ended: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") not in (_HELD, _LEFT):
            await self.app(scope, receive, send)
            return
        self.num_begun += 1
        if scope["path"] == _LEFT:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await self.gate.wait()
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": self.body})
        self.num_ended += 1


@asynccontextmanager
async def holding(
    words: Vocabulary, folder: Path, **config: Any
) -> AsyncIterator[tuple[Running, HeldApp]]:
    async with serving_http(words, folder, **config) as mesh:
        mesh.http.app = held = HeldApp(mesh.http.app)
        try:
            yield mesh, held
        finally:
            held.gate.set()


class Frames:
    """A client of HTTP/2 that keeps the frames which come: h2 reads none after GOAWAY."""

    def __init__(self, raw: RawRequest) -> None:
        self.raw = raw
        self.wire = H2Connection()
        self.seen: list[Frame] = []

    @classmethod
    async def connected(cls, mesh: Running, **settings: int) -> Frames:
        made = cls(await RawRequest.connected(mesh))
        made.wire.initiate_connection()
        made.wire.update_settings({SettingCodes[name]: it for name, it in settings.items()})
        return made

    def ask(self, *streams: int, path: str = _HELD) -> None:
        fields = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "localhost"}
        for stream in streams:
            self.wire.send_headers(stream, list(fields.items()), end_stream=True)
        self.send()

    def send(self) -> None:
        self.raw.writer.write(self.wire.data_to_send())

    async def until(self, kind: type[Frame]) -> Any:
        """The next frame of this kind."""
        while True:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await self.raw.reader.readexactly(9)
                frame, length = Frame.parse_frame_header(memoryview(head))
                frame.parse_body(memoryview(await self.raw.reader.readexactly(length)))
            self.seen.append(frame)
            if isinstance(frame, kind):
                return frame

    async def end(self) -> None:
        """All that comes until the edge closes the connection."""
        with pytest.raises(asyncio.IncompleteReadError) as ended:
            await self.until(_Never)
        assert not ended.value.partial
        self.raw.close()

    def seen_of(self, kind: type[Frame]) -> list[Any]:
        return [it for it in self.seen if isinstance(it, kind)]

    @property
    def answered(self) -> set[int]:
        """Streams whose answers came to their ends."""
        return {it.stream_id for it in self.seen_of(DataFrame) if "END_STREAM" in it.flags}


class _Never(Frame):
    stream_association = None


def stopping(mesh: Running) -> asyncio.Task[None]:
    return asyncio.create_task(mesh.edge.stop())


def is_stopping(mesh: Running) -> bool:
    return mesh.http._context.terminated.is_set()


async def test_requests_under_way_are_answered_when_their_connection_takes_no_more(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, max_requests_per_connection=3)
    async with holding(words, tmp_path, http=http) as (mesh, held):
        client = await Frames.connected(mesh)
        client.ask(1, 3, 5, 7)
        goaway = await client.until(GoAwayFrame)
        assert (goaway.last_stream_id, goaway.error_code) == (5, ErrorCodes.NO_ERROR)
        client.ask(9)
        reset = await client.until(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (9, ErrorCodes.REFUSED_STREAM)
        assert held.num_begun == 3
        held.gate.set()
        await client.end()
        assert client.answered == {1, 3, 5}
        assert client.seen_of(GoAwayFrame) == [goaway]


@pytest.mark.edge(http=HttpConfig(port=0, max_requests_per_connection=2))
async def test_a_client_that_asks_one_by_one_notices_nothing_of_the_limit(mesh: Running) -> None:
    async with plain(mesh, http2=True, http1=False) as client:
        for _ in range(5):
            answer = await client.get("/openapi.json")
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2")


async def test_an_edge_that_stops_says_which_requests_may_be_sent_again(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with holding(words, tmp_path, drain_s=60.0) as (mesh, held):
        client = await Frames.connected(mesh)
        client.ask(1)
        await eventually(lambda: held.num_begun == 1)
        stop = stopping(mesh)
        await eventually(lambda: is_stopping(mesh))
        client.ask(3)
        goaway = await client.until(GoAwayFrame)
        assert (goaway.last_stream_id, goaway.error_code) == (1, ErrorCodes.NO_ERROR)
        client.ask(5)
        reset = await client.until(RstStreamFrame)
        assert (reset.stream_id, reset.error_code) == (5, ErrorCodes.REFUSED_STREAM)
        held.gate.set()
        await client.end()
        assert client.answered == {1}
        assert client.seen_of(GoAwayFrame) == [goaway]
        await stop


async def test_a_reply_over_http2_may_end_while_an_edge_drains(
    words: Vocabulary, tmp_path: Path
) -> None:
    async with holding(words, tmp_path, drain_s=60.0) as (mesh, held):
        async with plain(mesh, http2=True, http1=False) as client:
            answer = asyncio.create_task(client.get(_HELD))
            await eventually(lambda: held.num_begun == 1)
            stop = stopping(mesh)
            await eventually(lambda: is_stopping(mesh))
            held.gate.set()
            assert (await answer).text == "ok"
        await stop


@pytest.mark.parametrize("is_answered", [False, True])
async def test_requests_that_are_no_chats_may_end_while_an_edge_drains(
    is_answered: bool, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_answered`: the client has read nothing of its large answer yet."""
    monkeypatch.setattr(listener, "_END_S", 0.0)
    async with holding(words, tmp_path, drain_s=60.0) as (mesh, held):
        held.body = bytes(16 << 20)
        request = await RawRequest.connected(mesh)
        request.send(f"GET {_HELD} HTTP/1.1", {"Host": "localhost"})
        if is_answered:
            held.gate.set()
            await request.until(b"\r\n\r\n")
        else:
            await eventually(lambda: held.num_begun == 1)
        stop = stopping(mesh)
        await asyncio.wait({stop}, timeout=0.3)
        assert not stop.done()
        assert held.num_ended == 0
        held.gate.set()
        assert (await request.rest()).endswith(held.body)
        await stop


@pytest.mark.parametrize("tls", ["off", "on"])
async def test_an_edge_with_nothing_under_way_stops_at_once(
    tls: str, words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, tls=tls, idle_timeout_s=600.0)
    async with (
        holding(words, tmp_path, http=http, drain_s=600.0, handshake_timeout_s=600.0) as (mesh, _),
        plain(mesh, verify=False) as http1,
        plain(mesh, verify=False, http2=True, http1=False) as http2,
    ):
        for client in (http1, http2):
            assert (await client.get("/openapi.json")).status_code == 200
        await RawRequest.connected(mesh)  # over TLS: its handshake has not begun
        (await RawRequest.connected(mesh)).writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        edge = mesh.http
        await eventually(lambda: edge.num_connections == 4)
        async with asyncio.timeout(_TIMEOUT_S):
            await mesh.edge.stop()


async def test_a_connection_whose_last_request_was_cancelled_is_idle(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, idle_timeout_s=0.3)
    async with holding(words, tmp_path, http=http) as (mesh, held):
        client = await Frames.connected(mesh)
        client.ask(1, path=_LEFT)
        await eventually(lambda: held.num_begun == 1)
        client.wire.reset_stream(1)
        client.send()
        await client.end()
        (goaway,) = client.seen_of(GoAwayFrame)
        assert goaway.last_stream_id == 1


async def test_a_client_that_vanishes_with_a_full_window_holds_no_place(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, send_timeout_s=600.0)
    async with holding(words, tmp_path, http=http) as (mesh, _):
        edge = mesh.http
        client = await Frames.connected(mesh, INITIAL_WINDOW_SIZE=10)
        client.ask(1, path="/openapi.json")
        await client.until(HeadersFrame)
        await client.until(DataFrame)
        client.raw.close()
        await eventually(lambda: edge.num_connections == 0)
