"""A QUIC client that breaks the rules: frames of its own making, in packets that no congestion
control holds back and that are never sent again.

It speaks QUIC through aioquic's client. `certificate` is the PEM file of the edge's certificate;
None trusts whoever answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection, QuicConnectionError
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, QuicEvent
from aioquic.quic.packet import QuicPacketType, QuicProtocolVersion
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.stream import QuicStream

from outrider.client.protocol import ALPN
from outrider.codec.frames import encode_frame
from outrider.v1 import edge_pb2

Address = tuple[str, int]
DATAGRAM_BYTES: Final = 1200
_PAYLOAD_BYTES: Final = 1150
"""Of the frames of one packet."""
TIMEOUT_S: Final = 10.0
SOURCE: ContextVar[str | None] = ContextVar("SOURCE", default=None)
"""The attacker's own address, where an attack names none."""
BURST_DATAGRAMS: Final = 16
"""Datagrams between two turns of the loop."""


@dataclass
class QuicAttackResult:
    """What the attacker saw."""

    num_sent: int = 0
    """Of what the attack counts: frames, connections, streams, datagrams."""
    num_connected: int = 0
    """Handshakes completed."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that the edge ended, by its reason phrase or error code."""


def varint(value: int) -> bytes:
    """RFC 9000, section 16."""
    return encode_uint_var(value)


def stream_frame(stream_id: int, offset: int, data: bytes, *, fin: bool = False) -> bytes:
    """A STREAM frame with offset and length (RFC 9000, section 19.8)."""
    kind = bytes([0x0E | fin])
    return kind + varint(stream_id) + varint(offset) + varint(len(data)) + data


def crypto_frame(offset: int, data: bytes) -> bytes:
    """A CRYPTO frame (section 19.6)."""
    return b"\x06" + varint(offset) + varint(len(data)) + data


def reset_frame(stream_id: int, final_size: int) -> bytes:
    """A RESET_STREAM frame (section 19.4)."""
    return b"\x04" + varint(stream_id) + varint(0) + varint(final_size)


def stop_frame(stream_id: int) -> bytes:
    """A STOP_SENDING frame (section 19.5)."""
    return b"\x05" + varint(stream_id) + varint(0)


def chat_frame(text: str, max_tokens: int = 16) -> bytes:
    """A chat, as its client sends it on a stream."""
    chat = edge_pb2.ChatRequest()
    chat.messages.add(role="user", content=text)
    chat.sampling.max_tokens = max_tokens
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


class HostileQuic(QuicConnection):
    """A client that sends what it is told to, and may keep its acknowledgements to itself."""

    acknowledges = True
    finishes = True
    """Whether the handshake is completed."""

    def packets(self, frames: Iterable[bytes], *, early: bool = False) -> list[bytes]:
        """Datagrams with these frames, as many as fit in each, in 1-RTT or 0-RTT packets."""
        kind = QuicPacketType.ZERO_RTT if early else QuicPacketType.ONE_RTT
        epoch = tls.Epoch.ZERO_RTT if early else tls.Epoch.ONE_RTT
        return [self._packet(payload, kind, epoch) for payload in pack_frames(frames)]

    def skip_packet_numbers(self, count: int) -> None:
        """As if so many packets had been lost."""
        self._packet_number += count

    def _packet(self, payload: bytes, kind: QuicPacketType, epoch: tls.Epoch) -> bytes:
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=True,
            max_datagram_size=DATAGRAM_BYTES + 100,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            version=self._version or QuicProtocolVersion.VERSION_1,
        )
        builder.start_packet(kind, self._cryptos[epoch])
        builder.start_frame(payload[0], capacity=len(payload)).push_bytes(payload[1:])
        (datagram,), _ = builder.flush()
        self._packet_number = builder.packet_number
        return datagram

    def _payload_received(self, *args: Any, **named: Any) -> tuple[bool, bool]:
        # It does not know of what was sent past it, and finds fault with the answers.
        with contextlib.suppress(QuicConnectionError):
            return super()._payload_received(*args, **named)
        return True, False

    def _handle_stop_sending_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        # It would reset the stream at the size that it knows of.
        buf.pull_uint_var()
        buf.pull_uint_var()

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        # aioquic does not know of streams that were opened by frames of our own.
        if stream_id not in self._streams and not self._stream_is_discarded(stream_id):
            self._get_or_create_stream_for_send(stream_id)
        return super()._get_or_create_stream(frame_type, stream_id)

    def _write_ack_frame(self, *args: Any, **named: Any) -> None:
        if self.acknowledges:
            super()._write_ack_frame(*args, **named)

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        """As QuicConnection; without `finishes`, nothing is heard."""
        if self.finishes:
            super().receive_datagram(data, addr, now)


def pack_frames(frames: Iterable[bytes]) -> Iterable[bytes]:
    """Frames put together to packets' payloads."""
    payload = bytearray()
    for frame in frames:
        if payload and len(payload) + len(frame) > _PAYLOAD_BYTES:
            yield bytes(payload)
            payload.clear()
        payload += frame
    if payload:
        yield bytes(payload).ljust(4, b"\0")  # PADDING: header protection samples so much


class HostileClient(QuicConnectionProtocol):
    """One connection of an attacker."""

    quic: HostileQuic

    def __init__(self, quic: HostileQuic) -> None:
        super().__init__(quic)
        self.quic = quic
        self.established = asyncio.Event()
        """The handshake is complete, or the edge has ended the connection."""
        self._heard = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed: ConnectionTerminated | None = None
        self.has_ticket = asyncio.Event()
        self.tickets: list[tls.SessionTicket] = []
        self.sent: list[bytes] = []
        """Datagrams, if `records`."""
        self.records = False

    async def heard(self) -> None:
        """Return when the next datagram has come from the edge."""
        self._heard.clear()
        await self._heard.wait()

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """A datagram came."""
        super().datagram_received(data, addr)
        self._heard.set()

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic for each event."""
        if isinstance(event, ConnectionTerminated):
            self.closed = event
            self.ended.set()
        if isinstance(event, (ConnectionTerminated, HandshakeCompleted)):
            self.established.set()

    def keep(self, ticket: tls.SessionTicket) -> None:
        """The edge gave a ticket."""
        self.tickets.append(ticket)
        self.has_ticket.set()

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there any more."""

    def put(self, datagram: bytes) -> None:
        """Send a datagram as it is."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.sendto(datagram)

    async def send(self, frames: Iterable[bytes], *, early: bool = False) -> None:
        """Send frames as they are; stops when the edge has closed."""
        for number, payload in enumerate(pack_frames(frames)):
            if self.closed is not None:
                return
            for datagram in self.quic.packets([payload], early=early):
                self.put(datagram)
            if number % BURST_DATAGRAMS == BURST_DATAGRAMS - 1:
                await asyncio.sleep(0)

    def transmit(self) -> None:
        """As QuicConnectionProtocol, on a connected socket."""
        self._transmit_task = None
        for data, _ in self._quic.datagrams_to_send(now=self._loop.time()):
            if self.records:
                self.sent.append(data)
            self.put(data)
        at = self._quic.get_timer()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._handle_timer)
        self._timer_at = at

    def vanish(self) -> None:
        """Go without a word."""
        for handle in (self._timer, self._transmit_task):
            if handle is not None:
                handle.cancel()
        if self._transport is not None:
            self._transport.close()


def configuration(certificate: Path | None, host: str) -> QuicConfiguration:
    """What an attacker's client is set up with."""
    made = QuicConfiguration(is_client=True, alpn_protocols=[ALPN], server_name=host)
    if certificate is None:
        made.verify_mode = ssl.CERT_NONE
    else:
        made.load_verify_locations(cafile=str(certificate))
    return made


async def begin(
    address: Address,
    certificate: Path | None,
    *,
    source: str | None = None,
    ticket: tls.SessionTicket | None = None,
    tune: Callable[[HostileQuic], None] | None = None,
    records: bool = False,
) -> HostileClient:
    """Send a first flight from an own socket, at the address `source` if one is given."""
    settings = configuration(certificate, address[0])
    settings.session_ticket = ticket
    quic = HostileQuic(configuration=settings)
    if tune is not None:
        tune(quic)
    source = source or SOURCE.get()
    _, client = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: HostileClient(quic),
        remote_addr=address,
        local_addr=None if source is None else (source, 0),
    )
    quic._session_ticket_handler, client.records = client.keep, records
    client.connect(address)
    return client


@asynccontextmanager
async def connected(
    address: Address,
    certificate: Path | None,
    outcome: QuicAttackResult,
    **settings: Any,
) -> AsyncIterator[HostileClient]:
    """A connection, which ends without a word; how the edge ended it goes to `outcome`."""
    client = await begin(address, certificate, **settings)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await client.established.wait()
        outcome.num_connected += client.closed is None
        yield client
    except TimeoutError:
        outcome.closed["no answer"] += 1
        raise
    finally:
        _note(client, outcome)
        client.vanish()


def _note(client: HostileClient, outcome: QuicAttackResult) -> None:
    event = client.closed or client.quic._close_event
    if event is not None:
        reason = event.reason_phrase or f"{event.error_code:#x}"
        outcome.closed[reason] += 1


async def linger(client: HostileClient, hold_s: float) -> None:
    """Stay for so long, or until the edge closes."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.ended.wait(), hold_s)
