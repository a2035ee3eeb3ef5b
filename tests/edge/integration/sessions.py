"""A client of WebTransport sessions that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.buffer import encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset

from outrider.client.protocol import WEBTRANSPORT_PATH
from outrider.codec.frames import FrameDecoder
from outrider.errors import OutriderError
from outrider.v1 import edge_pb2
from outrider.wire import error_from_proto
from tests.edge.http3.client import H3Client, Response

_STREAM = encode_uint_var(0x41)


class SessionStream:
    """A stream of a session, and what came on it."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.frames: list[edge_pb2.EdgeFrame] = []
        self.ended = asyncio.Event()
        self.reset_code: int | None = None
        self.stop_code: int | None = None
        self._decoder = FrameDecoder()

    def received(self, data: bytes, ended: bool) -> None:
        """Bytes came."""
        self.frames += [edge_pb2.EdgeFrame.FromString(it) for it in self._decoder.feed(data)]
        if ended:
            self.ended.set()

    async def whole(self) -> SessionStream:
        """This stream, once it has ended in whatever way."""
        await asyncio.wait_for(self.ended.wait(), 60)
        return self

    @property
    def text(self) -> str:
        """What was committed."""
        return "".join(it.commit.text for it in self.frames)

    async def error(self) -> OutriderError:
        """The error that ended it."""
        await self.whole()
        assert self.reset_code is None and self.frames[-1].WhichOneof("kind") == "error"
        return error_from_proto(self.frames[-1].error)


class SessionClient(H3Client):
    """Opens sessions and streams of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.streams: dict[int, SessionStream] = {}

    async def session(
        self,
        *,
        path: str = WEBTRANSPORT_PATH,
        origin: str = "",
        authority: str = "localhost",
        protocol: str = "webtransport",
    ) -> Response:
        """Ask for a session; returns once it is answered."""
        response = self.open()
        section = [
            (b":method", b"CONNECT"),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", path.encode()),
            (b":protocol", protocol.encode()),
        ]
        if origin:
            section.append((b"origin", origin.encode()))
        self.h3.send_headers(response.stream_id, section)
        self.transmit()
        await response.until(lambda: response.sections or response.ended.is_set())
        return response

    def say(self, session: Response, data: bytes, *, ends: bool = False) -> None:
        """Send capsules on the stream of a session."""
        self.h3.send_data(session.stream_id, data, ends)
        self.transmit()

    def stream(self, session: Response, data: bytes, *, ends: bool = False) -> SessionStream:
        """Open a stream of a session."""
        stream_id = self._quic.get_next_available_stream_id()
        stream = self.streams[stream_id] = SessionStream(stream_id)
        head = _STREAM + encode_uint_var(session.stream_id)
        self._quic.send_stream_data(stream_id, head + data, ends)
        self.transmit()
        return stream

    def send(self, stream: SessionStream, data: bytes) -> None:
        """Send more on a stream."""
        self._quic.send_stream_data(stream.stream_id, data)
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        """See QuicConnectionProtocol."""
        stream = self.streams.get(getattr(event, "stream_id", -1))
        if stream is None:
            super().quic_event_received(event)
        elif isinstance(event, StreamDataReceived):
            stream.received(event.data, event.end_stream)
        elif isinstance(event, StreamReset):
            stream.reset_code = event.error_code
            stream.ended.set()
        elif isinstance(event, StopSendingReceived):
            stream.stop_code = event.error_code


@asynccontextmanager
async def session_client(port: int, ca: Path) -> AsyncIterator[SessionClient]:
    """One on a connection of its own."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], max_datagram_frame_size=65_535
    )
    configuration.load_verify_locations(str(ca))
    async with connect(
        "127.0.0.1", port, configuration=configuration, create_protocol=SessionClient
    ) as client:
        assert isinstance(client, SessionClient)
        yield client
