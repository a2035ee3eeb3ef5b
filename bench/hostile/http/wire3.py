"""HTTP/3 from an attacker's side: bytes of any stream are sent, and of answers the status is
read."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aioquic._buffer import Buffer, BufferReadError
from aioquic.h3.connection import FrameType
from aioquic.quic.events import QuicEvent, StopSendingReceived, StreamDataReceived, StreamReset
from pylsqpack import Decoder, DecompressionFailed

from bench.hostile.http.sending import SOURCE, Answer, Ration, note
from bench.hostile.http.wire2 import integer
from bench.hostile.quic_client import (
    HostileClient,
    HostileQuic,
    QuicAttackResult,
    connected,
    varint,
)
from bench.hostile.target import Findings, Target, certificate_of

_ALPN: Final = "h3"
_REFUSED: Final = (ConnectionError, TimeoutError, OSError)
_CONNECTIONS: Final = 4
_CONTROL_STREAM: Final = 2
ENCODER_STREAM: Final = 6
DECODER_STREAM: Final = 10
OTHER_STREAM: Final = 14


def frame(kind: int, payload: bytes = b"") -> bytes:
    """RFC 9114, section 7.1."""
    return varint(kind) + varint(len(payload)) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(FrameType.SETTINGS, b"".join(varint(key) + varint(value) for key, value in pairs))


def pseudo(method: bytes = b"GET", path: bytes = b"/hidden") -> list[tuple[bytes, bytes]]:
    """The pseudo header fields of a request."""
    return [
        *((b":method", method), (b":scheme", b"https")),
        *((b":authority", b"edge"), (b":path", path)),
    ]


def section(*fields: tuple[bytes, bytes]) -> bytes:
    """A HEADERS frame of literals (RFC 9204, section 4.5.6), which may be none that are allowed."""
    literals = (
        integer(len(name), 3, 0x20) + name + integer(len(value), 7) + value
        for name, value in fields
    )
    return frame(FrameType.HEADERS, b"\x00\x00" + b"".join(literals))


class Http3(HostileClient):
    """One connection."""

    def __init__(self, quic: HostileQuic) -> None:
        super().__init__(quic)
        self._decoder = Decoder(0, 0)
        self._buffers: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self.statuses: dict[int, int] = {}
        """By request stream."""
        self.over: set[int] = set()
        """Request streams that the edge ended, in whatever way."""
        self.num_reset = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event."""
        super().quic_event_received(event)
        if isinstance(event, StreamDataReceived) and not event.stream_id % 4:
            self._read(event.stream_id, event.data)
            if event.end_stream:
                self.over.add(event.stream_id)
        elif isinstance(event, StreamReset | StopSendingReceived):
            self.num_reset += isinstance(event, StreamReset)
            self.over.add(event.stream_id)
        self._changed.set()

    def put_stream(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send on this stream; a connection that has ended takes nothing."""
        with contextlib.suppress(AssertionError, RuntimeError, ValueError):
            self.quic.send_stream_data(stream_id, data, end)
        self.transmit()

    def begin_request(self, data: bytes, *, end: bool = True) -> int:
        """Send this on a new request stream; its number."""
        stream_id = self.quic.get_next_available_stream_id()
        self.put_stream(stream_id, data, end=end)
        return stream_id

    def control(self, data: bytes) -> None:
        """Send on the control stream, whose type is the first byte."""
        self.put_stream(_CONTROL_STREAM, data)

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Return when this holds, when the connection has ended, or when the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (holds() or self.ended.is_set()):
                    self._changed.clear()
                    await self._changed.wait()

    async def until_over(self, streams: list[int], timeout_s: float) -> None:
        """Return when the edge has ended all of these."""
        await self.until(lambda: self.over.issuperset(streams), timeout_s)

    def _read(self, stream_id: int, data: bytes) -> None:
        """The status, which the first HEADERS frame has."""
        if stream_id in self.statuses:
            return
        data = self._buffers[stream_id] = self._buffers.get(stream_id, b"") + data
        buffer = Buffer(data=data)
        try:
            while True:
                kind, size = buffer.pull_uint_var(), buffer.pull_uint_var()
                payload = buffer.pull_bytes(size)
                if kind == FrameType.HEADERS:
                    _, fields = self._decoder.feed_header(stream_id, payload)
                    self.statuses[stream_id] = int(dict(fields)[b":status"])
                    del self._buffers[stream_id]
                    return
        except (BufferReadError, DecompressionFailed, KeyError):
            return


@contextlib.asynccontextmanager
async def http3(
    target: Target, findings: Findings, *, greeting: bytes | None = None
) -> AsyncIterator[Http3]:
    """A connection, which ends without a word; what it was answered is noted then. `greeting`: what
    the control stream begins with instead of well-formed SETTINGS. Raises OSError,
    TimeoutError."""
    outcome = QuicAttackResult()
    address = (target.host, target.port)
    try:
        async with connected(
            address, certificate_of(target), outcome, source=SOURCE, alpn=_ALPN, make=Http3
        ) as client:
            assert isinstance(client, Http3)
            try:
                client.control(b"\x00" + settings() if greeting is None else greeting)
                yield client
            finally:
                for status in client.statuses.values():
                    note(findings, Answer(status))
                if client.num_reset:
                    findings.count("streams reset by the edge", client.num_reset)
    finally:
        _note_ends(outcome.closed, findings)


async def on_connections(
    target: Target,
    ration: Ration,
    findings: Findings,
    num_each: int,
    use: Callable[[Http3, list[int]], Awaitable[None]],
    *,
    greeting: bytes | None = None,
) -> None:
    """Call `use` with one connection after the other, and the numbers of the requests to be sent on
    it; four at a time."""

    async def go_on() -> None:
        while numbers := ration.take_up_to(num_each):
            try:
                async with http3(target, findings, greeting=greeting) as connection:
                    await use(connection, numbers)
            except _REFUSED:
                findings.count("connections refused")

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(go_on())


def _note_ends(closed: Counter[str], findings: Findings) -> None:
    for reason, times in closed.items():
        findings.count(f"connection ended: {reason}", times)
