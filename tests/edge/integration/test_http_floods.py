"""Floods over TCP: who sends them is closed, told why where the protocol can, and others are
served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import ssl
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from anyio.streams.tls import TLSStream
from h2.connection import H2Connection
from h11._receivebuffer import ReceiveBuffer
from structlog.testing import capture_logs

from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from services.edge.http.config import HttpConfig
from services.edge.http.frame_gate import PREFACE
from services.edge.http.listener import HttpListener
from services.edge.limits.fair_queue import LoopUses
from tests.edge.integration.http_client import CHAT, KEY, RawRequest, plain, serving_http
from tests.edge.integration.running import Running

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))


DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 2, 3, 4, 6, 7
ENHANCE_YOUR_CALM, FRAME_SIZE_ERROR = 0xB, 0x6
_TIMEOUT_S = 30
HERE = "127.0.0.1/32"
_REFUSED = "outrider_edge_refused_total"
_GET = b"\x82\x84\x86\x41\x01a"
"""`GET http://a/` in HPACK."""
_ANSWERED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-api-key: %b\r\n\r\n" % KEY.encode()


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Flooder:
    """A client of HTTP/2 that sends what it likes and keeps the frames that come back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connected(cls, mesh: Running) -> Flooder:
        tls = None
        if mesh.edge._config.http.is_encrypted:
            tls = ssl.create_default_context(cafile=mesh.ca)
            tls.check_hostname = False
            tls.set_alpn_protocols(["h2"])
        made = cls(*await asyncio.open_connection("127.0.0.1", mesh.ports.http, ssl=tls))
        made.writer.write(PREFACE + frame(SETTINGS))
        return made

    async def frames(self) -> list[tuple[int, bytes]]:
        """All that come until the edge closes the connection: type and payload."""
        data = await asyncio.wait_for(self._reader.read(), _TIMEOUT_S)
        self.writer.close()
        found = []
        while data:
            length = int.from_bytes(data[:3], "big")
            found.append((data[3], data[9 : 9 + length]))
            data = data[9 + length :]
        return found


def goaway(frames: list[tuple[int, bytes]]) -> int:
    """Its code; it has to come last."""
    kind, payload = frames[-1]
    assert kind == GOAWAY
    return int.from_bytes(payload[4:8], "big")


def resets(num: int) -> bytes:
    return b"".join(
        frame(HEADERS, _GET, 0x4, 2 * n + 1) + frame(RST_STREAM, bytes(4), stream=2 * n + 1)
        for n in range(num)
    )


FLOODS = {
    "ping": frame(PING, bytes(8)) * 2000,
    "settings": frame(SETTINGS) * 2000,
    "priority": b"".join(frame(PRIORITY, b"\0\0\0\0\x10", 0, 2 * n + 1) for n in range(2000)),
    "resets": resets(500),
    "unknown": frame(0x99) * 2000,
    "empty data": frame(HEADERS, _GET, 0x4, 1) + frame(DATA, stream=1) * 2000,
    "headers": frame(HEADERS, _GET, 0, 1) + frame(9, bytes(10_000), 0, 1) * 20,
}


@pytest.mark.parametrize("tls", ["off", "on"])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_ends_its_connection_and_nobody_elses(
    flood: bytes, tls: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, http=HttpConfig(port=0, tls=tls)) as mesh:
        mesh.region.hold(2)
        async with plain(mesh, verify=False) as other:
            chat = asyncio.create_task(
                other.post(
                    "/v1/chat/completions",
                    json={"model": "small", "messages": [{"role": "user", "content": "hello"}]},
                )
            )
            await eventually(lambda: bool(mesh.region.live))
            for _ in range(3):
                flooder = await Flooder.connected(mesh)
                flooder.writer.write(flood)
                assert goaway(await flooder.frames()) == ENHANCE_YOUR_CALM
                assert (await other.get("/v1/models")).status_code == 200
            mesh.region.gate.set()
            assert (await chat).status_code == 200
        await mesh.settled()
        await eventually(lambda: mesh.sample(_REFUSED, reason="http frames") == 3)


async def test_a_handshake_is_charged_to_its_address(
    words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_http(words, tmp_path, http=HttpConfig(port=0, tls="on")) as mesh:
        wrap = TLSStream.wrap

        async def slow(*stream: Any, **options: Any) -> TLSStream:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            return await wrap(*stream, **options)

        spent, spend = list[float](), LoopUses.spend

        def spending(uses: LoopUses, address: str, seconds: float, now: float) -> None:
            assert address == HERE
            spent.append(seconds)
            spend(uses, address, seconds, now)

        monkeypatch.setattr(TLSStream, "wrap", slow)
        monkeypatch.setattr(LoopUses, "spend", spending)
        flooder = await Flooder.connected(mesh)
        flooder.writer.close()
        await eventually(lambda: sum(spent) > 0.09)


async def test_who_comes_back_after_each_flood_may_send_less_each_time(
    words: Vocabulary, tmp_path: Path
) -> None:
    answered = []
    async with serving_http(words, tmp_path) as mesh:
        for _ in range(12):
            flooder = await Flooder.connected(mesh)
            flooder.writer.write(FLOODS["ping"])
            frames = await flooder.frames()
            answered.append(sum(kind == PING for kind, _ in frames))
            assert goaway(frames) == ENHANCE_YOUR_CALM
        async with plain(mesh) as other:
            assert (await other.get("/v1/models")).status_code == 200
    assert min(answered[:10]) > 900 and max(answered[11:]) < 200


async def test_a_chat_that_is_reset_in_the_packet_that_asks_for_it_is_not_begun(
    mesh: Running,
) -> None:
    """CVE-2023-44487: no region is to compute for a flood of such."""
    wire = H2Connection()
    wire.initiate_connection()
    wire.data_to_send()  # Flooder has sent it
    fields = {":method": "POST", ":path": "/v1/chat/completions", ":scheme": "http"}
    fields |= {":authority": "localhost", "x-api-key": KEY, "content-type": "application/json"}
    flooder = await Flooder.connected(mesh)
    for stream in range(1, 41, 2):
        wire.send_headers(stream, list(fields.items()))
        wire.send_data(stream, json.dumps(CHAT).encode(), end_stream=True)
        wire.reset_stream(stream)
        flooder.writer.write(wire.data_to_send())
        await flooder.writer.drain()
    answers = "outrider_edge_http_answers_total"
    labels = {"route": "/v1/chat/completions", "status": "499"}
    await eventually(lambda: mesh.sample(answers, **labels) == 20)
    begun = mesh.of_model("outrider_edge_chats_total", outcome="CANCELLED")
    assert mesh.region.opened == [] and begun == 0 == mesh.edge.telemetry.num_chats
    flooder.writer.close()


@pytest.mark.parametrize("kind", [DATA, HEADERS, PING, 0x99])
async def test_a_frame_of_16_megabytes_is_refused_before_it_comes(kind: int, mesh: Running) -> None:
    flooder = await Flooder.connected(mesh)
    flooder.writer.write(b"\xff\xff\xff" + frame(kind, stream=1)[3:])
    assert goaway(await flooder.frames()) == FRAME_SIZE_ERROR


def refused(mesh: Running, reason: str) -> float:
    return mesh.sample(_REFUSED, reason=reason)


async def test_broken_protocol_is_counted_and_said_in_few_lines(
    words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, max_control_frames_per_s=100_000.0)
    # More streams than the tree of priorities holds, which anycorn does not expect.
    broken = b"".join(frame(PRIORITY, b"\0\0\0\0\x10", 0, 2 * n + 1) for n in range(1100))
    async with serving_http(words, tmp_path, http=http) as mesh:
        with capture_logs() as lines:
            for _ in range(10):
                flooder = await Flooder.connected(mesh)
                flooder.writer.write(broken)
                await flooder.frames()
            await eventually(lambda: refused(mesh, "broken http") == 10)
        async with plain(mesh) as other:
            assert (await other.get("/v1/models")).status_code == 200
    assert not any("exc_info" in it for it in lines)
    said = [it for it in lines if it["event"] == "refused"]
    assert said[0]["num_by_reason"] == {"broken http": 1} and "Error" in said[0]["error"]
    # As many lines as seconds went by, which on a busy machine may be one for each.
    assert sum(it["num_by_reason"]["broken http"] for it in said) <= 10


async def test_a_defect_is_told_with_its_traceback_once_and_ends_its_connection_alone(
    words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect")

    async with serving_http(words, tmp_path) as mesh:
        with monkeypatch.context() as defective, capture_logs() as lines:
            defective.setattr(HttpListener, "_frame_limits", broken)
            for _ in range(5):
                request = await RawRequest.connected(mesh)
                with contextlib.suppress(ConnectionError):
                    assert await request.rest() == b""
            await eventually(lambda: refused(mesh, "http failure") == 5)
        async with plain(mesh) as other:
            assert (await other.get("/v1/models")).status_code == 200
    (told,) = [it for it in lines if it["event"] == "http_connection_failed"]
    assert isinstance(told["exc_info"], KeyError)
    named = [it["error"] for it in lines if it["event"] == "refused"]
    assert named and {it.partition(":")[0] for it in named} == {"KeyError at test_http_floods.py"}


@pytest.mark.parametrize("before", [b"", _ANSWERED])
async def test_what_only_resembles_the_preface_is_not_http2(before: bytes, mesh: Running) -> None:
    preface = PREFACE if before else b"PRI * HTTP/2.0\n\nSM\r\n\r\n"
    request = await RawRequest.connected(mesh)
    request.writer.write(before + preface + frame(SETTINGS) + FLOODS["ping"])
    answer = await request.rest()
    assert frame(SETTINGS, flags=1) not in answer
    assert (b'"object":"list"' in answer) is bool(before)


@pytest.mark.parametrize("tls", ["off", "on"])
async def test_pipelined_requests_leave_room_for_others(
    tls: str, words: Vocabulary, tmp_path: Path
) -> None:
    http = HttpConfig(port=0, tls=tls, max_requests_per_connection=100)
    async with serving_http(words, tmp_path, http=http) as mesh:
        context = ssl.create_default_context(cafile=mesh.ca) if tls == "on" else None
        if context is not None:
            context.check_hostname = False
        floods = []
        for _ in range(10):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", mesh.ports.http, ssl=context
            )
            writer.write(_ANSWERED * 80)
            floods.append((reader, writer))
        async with plain(mesh, verify=False) as other:
            for _ in range(5):
                assert (await other.get("/v1/models")).status_code == 200
        for reader, writer in floods:
            for _ in range(80):
                await asyncio.wait_for(reader.readuntil(b'"object":"list"'), _TIMEOUT_S)
            writer.transport.abort()


class LargeBody:
    """A body of 1 MB over HTTP/1.1 that is sent in parts, from an address of its own."""

    DATA = json.dumps({"prompt": "hello"}).encode().ljust(1_000_000)

    def __init__(self, request: RawRequest) -> None:
        self.request = request
        self.num_sent = 0

    @classmethod
    async def begun(cls, mesh: Running, source: str = "127.0.0.1") -> LargeBody:
        """The edge waits for it."""
        made = cls(await RawRequest.connected(mesh, source))
        fields = {
            "Host": "localhost",
            "Authorization": f"Bearer {KEY}",
            "Content-Type": "application/json",
            "Content-Length": str(len(cls.DATA)),
            "Expect": "100-continue",
        }
        made.request.send("POST /tokenize HTTP/1.1", fields)
        assert (await made.request.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        return made

    def send(self, num_bytes: int = 1_000_000) -> None:
        part = self.DATA[self.num_sent : self.num_sent + num_bytes]
        self.request.writer.write(part)
        self.num_sent += len(part)

    async def status(self) -> bytes:
        return (await self.request.until(b"\r\n\r\n")).split(b" ")[1]


async def test_heads_alone_keep_no_memory_from_bodies(mesh: Running) -> None:
    heads = [await LargeBody.begun(mesh) for _ in range(40)]
    assert mesh.edge.listener.shared._received.num_bytes == 0
    body = await LargeBody.begun(mesh)
    body.send()
    assert await body.status() == b"200"
    assert len(mesh.http._connections) == len(heads) + 1


@pytest.mark.edge(http=HttpConfig(port=0, body_timeout_s=600.0))
async def test_bodies_in_parts_starve_neither_each_other_nor_anybody_else(mesh: Running) -> None:
    """One address may hold 16 MiB: of 24 bodies of 1 MB that come beside each other, 15 or 16 are
    answered, and the others refused as soon as there is no room for them."""
    held = mesh.edge.listener.shared._received
    bodies = [await LargeBody.begun(mesh) for _ in range(24)]
    for body in bodies[:16]:
        body.send(999_000)
    await eventually(lambda: held.num_bytes == 16 * 999_000)
    for body in bodies[16:]:
        body.send(999_000)
    for early in bodies[:8]:
        assert await early.status() == b"429"
    await eventually(lambda: held.num_bytes == 16 * 999_000)
    other = await LargeBody.begun(mesh, "127.0.0.9")
    other.send()
    assert await other.status() == b"200"
    for body in bodies[8:]:
        body.send()
        assert await body.status() == b"200"
    await eventually(lambda: held.num_bytes == 0)


@pytest.mark.edge(http=HttpConfig(port=0, max_waiting_connections=0), max_connections_per_address=2)
async def test_who_has_too_many_connections_is_told(mesh: Running) -> None:
    held = [await RawRequest.connected(mesh) for _ in range(2)]
    await eventually(lambda: len(mesh.http._connections) == 2)
    one_more = await RawRequest.connected(mesh)
    one_more.writer.write(_ANSWERED)
    told = await one_more.rest()
    assert told.startswith(b"HTTP/1.1 503 ") and b"no room for more connections" in told
    head, _, body = told.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head
    held[0].close()
    await eventually(lambda: len(mesh.http._connections) == 1)
    again = await RawRequest.connected(mesh)
    again.writer.write(_ANSWERED)
    assert (await again.until(b"\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.edge(http=HttpConfig(port=0, max_waiting_connections=4), max_connections_per_address=2)
async def test_connections_beyond_an_addresss_wait_for_others_to_close(mesh: Running) -> None:
    """Those before them are told to close with their answers; too many are refused."""
    kept = [await RawRequest.connected(mesh) for _ in range(2)]
    await eventually(lambda: mesh.http.num_connections == 2)
    waiting = [await RawRequest.connected(mesh) for _ in range(2)]
    for each in waiting:
        each.writer.write(_ANSWERED)
    await eventually(lambda: mesh.http.num_waiting == 2)
    refused = await RawRequest.connected(mesh)
    refused.writer.write(_ANSWERED)
    assert (await refused.rest()).startswith(b"HTTP/1.1 503 ")
    assert mesh.http.num_connections == 2
    for each in (*kept, *waiting):
        if each in kept:
            each.writer.write(_ANSWERED)
        assert (await each.until(b"\r\n")).startswith(b"HTTP/1.1 200")
        if each in kept:
            head = await each.until(b"\r\n\r\n")
            assert b"connection: close" in head.lower()
    for each in waiting:
        each.close()
    await eventually(lambda: not mesh.http.num_connections and not mesh.http.num_waiting)


@pytest.mark.edge(
    http=HttpConfig(port=0, tls="on", max_waiting_connections=0), max_connections_per_address=1
)
async def test_who_has_too_many_connections_is_told_by_tls(mesh: Running) -> None:
    held = await RawRequest.connected(mesh)
    await eventually(lambda: len(mesh.http._connections) == 1)
    trusted = ssl.create_default_context(cafile=str(mesh.ca))
    with pytest.raises(ssl.SSLError, match=r"(?i)alert internal error"):
        await asyncio.open_connection("127.0.0.1", mesh.ports.http, ssl=trusted)
    held.close()


async def test_heads_that_are_refused_leave_nothing_behind(mesh: Running) -> None:
    """Though the objects of a connection refer to each other, and garbage of that kind is looked
    for seldom."""
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 300_000 + b"\r\n\r\n"
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", mesh.ports.http)
            writer.write(head)
            assert (await reader.read(12)).startswith(b"HTTP/1.1 431")
            writer.close()
        await eventually(lambda: not mesh.http._connections)
        kept = [it for it in gc.get_objects() if type(it) is ReceiveBuffer]
    finally:
        gc.enable()
    assert not any(len(it) > 1000 for it in kept)
