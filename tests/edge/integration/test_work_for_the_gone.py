"""A client that left costs nothing one slice later: on every route, through every door."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from h2.connection import H2Connection

from outrider.codec.frames import encode_frame
from outrider.fair_work.threads import WorkerThreads
from outrider.models.definitions import ModelSpec
from outrider.models.detokenizer import Detokenizer
from outrider.models.vocabulary import Vocabulary
from outrider.testing import eventually
from outrider.tokenization.backends.fallback import FallbackBackend
from outrider.tokenization.cuts import SLICE_CHARS
from outrider.v1 import common_pb2, edge_pb2
from services.edge.http.config import HttpConfig
from services.edge.http.routes import ALL_ROUTES
from tests.edge.http3.client import h3_client
from tests.edge.integration.access_matrix import FIRST_FRAMES, GOOD
from tests.edge.integration.http_client import KEY, RawRequest, plain, serving_http
from tests.edge.integration.region import Embeddings
from tests.edge.integration.running import Running
from tests.edge.integration.trouble import RawStream, raw, raw_tcp

pytestmark = pytest.mark.edge(http=HttpConfig(port=0))

_SLICES: Final = 3
_CHARS: Final = _SLICES * SLICE_CHARS - SLICE_CHARS // 2
"""Of a text of so many slices: less than 100,000, of which each is a token here."""


@dataclass(frozen=True, slots=True)
class Said:
    """Something that takes several slices, of which each unit of work tells whose it is."""

    word: str
    token: int

    @property
    def text(self) -> str:
        return f"{self.word} " * (_CHARS // 4)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]

    @property
    def ids(self) -> list[int]:
        return [self.token] * (_SLICES * 8192)

    def is_in(self, unit: str | Sequence[int]) -> bool:
        return (self.word if isinstance(unit, str) else self.token) in unit


GONE, NEXT = Said("one", 1), Said("two", 2)

# What each computes.


class Held:
    """Units of work in the threads of an edge, kept when they begin, and held until they may go
    on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.begun: list[Said] = []
        self.num_given_up = 0
        """Jobs that nobody waits for any more."""
        self.may_go_on = threading.Event()
        unit, remove, loop = getattr(owner, name), WorkerThreads.remove, threading.current_thread()

        def held(of: Any, given: Any) -> Any:
            whose = next((it for it in (GONE, NEXT) if it.is_in(given)), None)
            if whose is not None and threading.current_thread() is not loop:
                self.begun.append(whose)
                assert self.may_go_on.wait(30)
            return unit(of, given)

        def given_up(threads: WorkerThreads[Any], job: Any) -> bool:
            self.num_given_up += 1
            return remove(threads, job)

        monkeypatch.setattr(owner, name, held)
        monkeypatch.setattr(WorkerThreads, "remove", given_up)


@dataclass(frozen=True, slots=True)
class Computes:
    """A request that computes for several slices."""

    body: Callable[[Said], Mapping[str, Any]]
    unit: tuple[type, str] = (FallbackBackend, "encode")
    """What a thread calls in each slice."""


_CHAT: Final = Computes(lambda said: {"messages": said.messages, "max_tokens": 4})
_INPUT: Final = Computes(lambda said: {"input": said.text})
_PROMPT: Final = Computes(lambda said: {"prompt": said.text})
ROUTES: Final[Mapping[str, Computes]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _PROMPT,
    "/v1/responses": _INPUT,
    "/v1/responses/input_tokens": _INPUT,
    "/v1/messages": _CHAT,
    "/v1/messages/count_tokens": Computes(lambda said: {"messages": said.messages}),
    "/tokenize": _PROMPT,
    "/detokenize": Computes(lambda said: {"tokens": said.ids}, (Detokenizer, "push_all")),
}
"""By path, of routes that compute."""
EMBEDDINGS: Final = "/v1/embeddings"
"""Has a test of its own: a region computes."""
FRAMES: Final[Mapping[str, Callable[[Said], edge_pb2.ClientFrame]]] = {
    "chat": lambda said: edge_pb2.ClientFrame(
        chat=edge_pb2.ChatRequest(messages=[common_pb2.ChatMessage(role="user", content=said.text)])
    ),
    "tokenize": lambda said: edge_pb2.ClientFrame(tokenize=edge_pb2.TokenizeText(text=said.text)),
    "typed": lambda said: edge_pb2.ClientFrame(typed=edge_pb2.TypedText(text=said.text)),
}
"""First frames of the native protocol that compute."""
COMPUTES_NOTHING: Final = {"describe"}
"""First frames that are answered at once."""


def test_every_route_and_first_frame_has_its_row() -> None:
    assert {route.path for route in ALL_ROUTES if route.is_limited} == {*ROUTES, EMBEDDINGS}
    frames = {name for name, frame in FIRST_FRAMES.items() if not frame.refused_as}
    assert frames == {*FRAMES, *COMPUTES_NOTHING}


# How a client leaves.

Leave: TypeAlias = Callable[[], None]
Begin: TypeAlias = Callable[[str, bytes], Leave]
"""Posts a body to a path; the answer resets the request."""


@asynccontextmanager
async def _http1(mesh: Running) -> AsyncIterator[Begin]:
    raw = await RawRequest.connected(mesh)

    def begin(path: str, body: bytes) -> Leave:
        fields = {
            "Host": "localhost",
            "Authorization": f"Bearer {KEY}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
        raw.send(f"POST {path} HTTP/1.1", fields, body)
        return raw.close

    yield begin


@asynccontextmanager
async def _http2(mesh: Running) -> AsyncIterator[Begin]:
    raw, wire = await RawRequest.connected(mesh), H2Connection()
    wire.initiate_connection()
    raw.writer.write(wire.data_to_send())
    left = bytearray()

    def send_on() -> None:
        while left and (room := min(wire.local_flow_control_window(1), 1 << 14)) > 0:
            wire.send_data(1, bytes(left[:room]), end_stream=len(left) <= room)
            del left[:room]
        raw.writer.write(wire.data_to_send())

    async def read_on() -> None:
        while data := await raw.reader.read(1 << 16):
            wire.receive_data(data)
            send_on()

    def begin(path: str, body: bytes) -> Leave:
        fields = {
            ":method": "POST",
            ":path": path,
            ":scheme": "http",
            ":authority": "localhost",
            "authorization": f"Bearer {KEY}",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        wire.send_headers(1, list(fields.items()))
        left.extend(body)
        send_on()

        def leave() -> None:
            wire.reset_stream(1)
            raw.writer.write(wire.data_to_send())

        return leave

    reading = asyncio.create_task(read_on())
    try:
        yield begin
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        raw.close()


@asynccontextmanager
async def _http3(mesh: Running) -> AsyncIterator[Begin]:
    async with h3_client(mesh.ports.main, mesh.ca) as client:

        def begin(path: str, body: bytes) -> Leave:
            fields = [
                (b"authorization", f"Bearer {KEY}".encode()),
                (b"content-type", b"application/json"),
            ]
            asked = client.ask("POST", path, body, fields)

            def leave() -> None:
                client._quic.stop_stream(asked.stream_id, 0x10C)  # H3_REQUEST_CANCELLED
                client.transmit()

            return leave

        yield begin


DOORS: Final[Mapping[str, Callable[[Running], AbstractAsyncContextManager[Begin]]]] = {
    "HTTP/1.1": _http1,
    "HTTP/2": _http2,
    "HTTP/3": _http3,
}


@asynccontextmanager
async def _holding(
    computes: Computes,
    words: Vocabulary,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tls: str = "off",
) -> AsyncIterator[tuple[Running, Held]]:
    http = HttpConfig(port=0, tls=tls)
    async with serving_http(words, folder, http=http, max_context_tokens=1 << 19) as mesh:
        held = Held(monkeypatch, *computes.unit)
        try:
            yield mesh, held
        finally:
            held.may_go_on.set()


async def _check_nothing_goes_on(
    held: Held, leave: Leave, others: Callable[[], Awaitable[None]]
) -> None:
    """What has begun when the client leaves is the last of it, though somebody else's work of as
    many slices is done afterwards, in turns with what else there is."""
    await eventually(lambda: held.begun == [GONE])
    leave()
    await eventually(lambda: held.num_given_up == 1)
    held.may_go_on.set()
    await others()
    assert held.begun.count(NEXT) >= _SLICES
    assert held.begun.count(GONE) == 1


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("path", ROUTES)
async def test_no_route_computes_for_who_is_gone(
    path: str, door: str, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computes = ROUTES[path]
    async with (
        _holding(computes, words, tmp_path, monkeypatch) as (mesh, held),
        DOORS[door](mesh) as begin,
    ):

        async def others() -> None:
            other = path if path == "/detokenize" else "/tokenize"
            body = {"model": "small", **ROUTES[other].body(NEXT)}
            async with plain(mesh) as client:
                assert (await client.post(other, json=body)).status_code == 200

        body = {"model": "small", **computes.body(GONE)}
        leave = begin(path, json.dumps(body).encode())
        await _check_nothing_goes_on(held, leave, others)


WAYS: Final[Mapping[str, tuple[Any, str]]] = {"QUIC": (raw, "off"), "TCP": (raw_tcp, "on")}
"""Connections of the native protocol, and whether HTTP has to be encrypted for them."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FRAMES)
async def test_no_first_frame_computes_for_who_is_gone(
    kind: str, way: str, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, tls = WAYS[way]
    async with (
        _holding(_PROMPT, words, tmp_path, monkeypatch, tls) as (mesh, held),
        connected(mesh) as sent,
    ):

        def begin(kind: str, said: Said) -> RawStream:
            return RawStream(sent, encode_frame(FRAMES[kind](said).SerializeToString()))

        async def others() -> None:
            answered = begin("tokenize", NEXT)
            await eventually(answered.ended.is_set)
            assert answered.frames[-1].WhichOneof("kind") == "tokenized"

        stream = begin(kind, GONE)
        await _check_nothing_goes_on(held, partial(sent.drop, stream.stream_id), others)


@pytest.mark.parametrize("door", DOORS)
async def test_a_region_embeds_nothing_for_who_is_gone(
    door: str, words: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = list[int](), list[int]()

    async def embed(service: Embeddings, request: Any, context: Any) -> None:
        begun.append(len(request.inputs))
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(len(request.inputs))

    monkeypatch.setattr(Embeddings, "EmbedAtOnce", embed)
    async with serving_http(words, tmp_path) as mesh, DOORS[door](mesh) as begin:
        mesh.edge.models.embedders.set([ModelSpec("e", "dir:/nowhere", embeds=True)])
        leave = begin(EMBEDDINGS, json.dumps({"model": "e", "input": ["a", "b"]}).encode())
        await eventually(lambda: begun == [2])
        leave()
        await eventually(lambda: ended == [2])


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("path", [path for path in ROUTES if GOOD["POST", path].computes])
async def test_a_region_is_told_when_the_client_of_a_reply_leaves(
    path: str, door: str, words: Vocabulary, tmp_path: Path
) -> None:
    async with serving_http(words, tmp_path, "x" * 2000) as mesh, DOORS[door](mesh) as begin:
        mesh.region.hold(2)
        body = {**(GOOD["POST", path].body or {}), "model": "small", "max_tokens": 1000}
        leave = begin(path, json.dumps(body).encode())
        await eventually(lambda: bool(mesh.region.live))
        leave()
        await eventually(lambda: len(mesh.region.cancelled) == 1)
        mesh.region.gate.set()
