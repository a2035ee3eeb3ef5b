"""Streams without the client's checks, chats to have beside the trouble, and what it leaves."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from outrider.client import Client, Committed, Event, Message
from outrider.client.address import EdgeAddress
from outrider.client.chat import Chat
from outrider.client.connection import ClientConnection
from outrider.client.dialling import dial_quic
from outrider.client.http2 import Http2Connection, connect_http2
from outrider.client.streams import Connection
from outrider.client.tickets import SessionTickets
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.errors import OutriderError, UnavailableError
from outrider.v1 import edge_pb2
from outrider.wire import error_from_proto
from tests.edge.integration.running import REPLY, Running

ASK = [Message("user", "hello")]


def chat_frame(**sampling: Any) -> bytes:
    chat = edge_pb2.ChatRequest()
    chat.messages.add(role="user", content="hello")
    for name, value in sampling.items():
        setattr(chat.sampling, name, value)
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


class RawStream:
    """A stream without the client's checks; keeps the frames and the way it ended."""

    def __init__(self, connection: Connection, data: bytes) -> None:
        self.frames: list[edge_pb2.EdgeFrame] = []
        self.ended = asyncio.Event()
        self.cut_off: OutriderError | None = None
        self._decoder = FrameDecoder()
        self.stream_id = connection.open(self, data)

    def received(self, data: bytes, end_stream: bool) -> None:
        self.frames += [edge_pb2.EdgeFrame.FromString(p) for p in self._decoder.feed(data)]
        if end_stream:
            self.ended.set()

    def failed(self, error: OutriderError) -> None:
        self.cut_off = error
        self.ended.set()

    async def error(self) -> OutriderError:
        """The error that ended the stream."""
        await asyncio.wait_for(self.ended.wait(), 30)
        assert self.cut_off is None
        assert self.frames[-1].WhichOneof("kind") == "error"
        return error_from_proto(self.frames[-1].error)


@asynccontextmanager
async def raw(mesh: Running) -> AsyncIterator[ClientConnection]:
    address = EdgeAddress("127.0.0.1", mesh.ports.main, mesh.ca)
    connection = await dial_quic(address, 5.0, SessionTickets())
    try:
        yield connection
    finally:
        connection.shut()


@asynccontextmanager
async def raw_tcp(mesh: Running) -> AsyncIterator[Http2Connection]:
    """The same over TCP, for an edge whose HTTP is encrypted."""
    connection = await connect_http2(tcp_address(mesh), 5.0)
    try:
        yield connection
    finally:
        connection.shut()


def tcp_address(mesh: Running) -> EdgeAddress:
    """Of an edge that serves HTTP."""
    return EdgeAddress("127.0.0.1", mesh.ports.main, mesh.ca, http_port=mesh.ports.http)


@asynccontextmanager
async def bystander(mesh: Running, client: Client) -> AsyncIterator[None]:
    """A chat on the same connection, halfway when the trouble comes, that must end well."""
    mesh.region.hold(2)
    chat = await start(client)
    yield
    mesh.region.gate.set()
    assert (await chat.result()).text == REPLY


def quic(client: Client) -> ClientConnection:
    """The present connection of a client that QUIC reaches."""
    connection = client._link.connection
    assert isinstance(connection, ClientConnection)
    return connection


def cut(client: Client) -> None:
    """The connection is no more, and neither side was told why."""
    quic(client)._lose(UnavailableError("cut by the test"))


async def said(chat: Chat) -> str:
    """The whole text of a chat that nobody does anything else with."""
    async with chat:
        return (await chat.result()).text


async def start(client: Client, **options: Any) -> Chat:
    """A chat under way: its first tokens have come."""
    chat = client.chat(ASK, **options)
    await chat.__aenter__()
    async for event in chat:
        if isinstance(event, Committed):
            return chat
    raise AssertionError("the chat ended before its first token")


async def whole(chat: Chat, reply: str = REPLY) -> list[Event]:
    """All events still to come; the reply has to be whole."""
    events = [event async for event in chat]
    result = await chat.result()
    assert result.text == reply
    assert len(result.ids) == len(reply) + 1, "a byte a token, and the end"
    return events


@contextmanager
def uncollected(*kinds: type) -> Iterator[weakref.WeakSet[object]]:
    """The objects of these kinds that are made from now on and are alive. No garbage is collected
    meanwhile: what many connections would leave to a collection would hold the loop."""
    alive: weakref.WeakSet[object] = weakref.WeakSet()

    def noted(made: Callable[..., None]) -> Callable[..., None]:
        def init(self: object, *args: Any, **options: Any) -> None:
            alive.add(self)
            made(self, *args, **options)

        return init

    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            patch.setattr(kind, "__init__", noted(kind.__init__))  # type: ignore[misc]
        gc.collect()
        gc.disable()
        try:
            yield alive
        finally:
            gc.enable()
